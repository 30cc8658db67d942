"""CreateAcls, DescribeAcls and DeleteAcls as clients see them."""

import pytest

from headwater.broker.api.registry import RequestContext
from headwater.broker.security.authorizer import Operation, Principal, ResourceType
from headwater.errors import CorruptLog
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.create_acls import CreateAclsRequest, CreateAclsRequestAclCreation
from headwater.protocol.messages.delete_acls import (
    DeleteAclsRequest,
    DeleteAclsRequestDeleteAclsFilter,
)
from headwater.protocol.messages.describe_acls import DescribeAclsRequest

ADMIN, ALICE = Principal("admin"), Principal("alice")
ANY = 1
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
VERSIONS = (1, 2, 3)


def creation(name="orders", operation=Operation.READ, **others) -> CreateAclsRequestAclCreation:
    fields = {
        "resource_type": ResourceType.TOPIC,
        "resource_name": name,
        "resource_pattern_type": LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": operation,
        "permission_type": ALLOW,
    }
    return CreateAclsRequestAclCreation(**{**fields, **others})


def create(broker, *creations, version=3, principal=ADMIN) -> list[int]:
    answer = broker.ask(CreateAclsRequest(creations=list(creations)), version, principal)
    return [result.error_code for result in answer.results]


def describe(broker, version=3, principal=ADMIN, **wanted):
    fields = {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }
    return broker.ask(DescribeAclsRequest(**{**fields, **wanted}), version, principal)


def described(broker, **wanted) -> set[tuple[int, str, int, str, str, int, int]]:
    return {
        (
            resource.resource_type, resource.resource_name, resource.pattern_type,
            acl.principal, acl.host, acl.operation, acl.permission_type,
        )
        for resource in describe(broker, **wanted).resources
        for acl in resource.acls
    }  # fmt: skip


def delete_filter(**wanted) -> DeleteAclsRequestDeleteAclsFilter:
    fields = {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }
    return DeleteAclsRequestDeleteAclsFilter(**{**fields, **wanted})


def delete(broker, *filters, version=3, principal=ADMIN):
    return broker.ask(DeleteAclsRequest(filters=list(filters)), version, principal).filter_results


def may_read(broker, topic="orders", who=ALICE) -> bool:
    context = RequestContext(0, 0, None, "127.0.0.1", None, who)
    return broker.broker.authorizer.allows(context, Operation.READ, ResourceType.TOPIC, topic)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_created_is_in_force_and_described(guarded, version):
    assert not may_read(guarded)
    assert create(guarded, creation(), version=version) == [0]
    assert may_read(guarded)
    answer = describe(guarded, version)
    assert answer.error_code == 0
    (resource,) = answer.resources
    assert (resource.resource_type, resource.resource_name) == (ResourceType.TOPIC, "orders")
    (acl,) = resource.acls
    assert (acl.principal, acl.host, acl.permission_type) == ("User:alice", "*", ALLOW)


@pytest.mark.parametrize("version", VERSIONS)
def test_deleted_acls_are_reported_and_no_longer_in_force(guarded, version):
    create(guarded, creation(), creation("payments"), creation("ord", resource_pattern_type=4))
    assert may_read(guarded)
    (result,) = delete(
        guarded, delete_filter(resource_name_filter="orders", pattern_type_filter=2),
        version=version,
    )  # fmt: skip
    reported = {(acl.resource_name, acl.pattern_type) for acl in result.matching_acls}
    assert reported == {("orders", LITERAL), ("ord", PREFIXED)}
    assert not may_read(guarded)
    assert {name for _, name, *_ in described(guarded)} == {"payments"}


def test_acls_outlive_the_broker(guarded):
    create(guarded, creation(), creation("x"))
    delete(guarded, delete_filter(resource_name_filter="x"))
    guarded.reopen()
    assert may_read(guarded)
    assert not may_read(guarded, "x")
    assert {name for _, name, *_ in described(guarded)} == {"orders"}


def test_an_acl_that_cannot_be_read_keeps_the_broker_from_starting(guarded):
    guarded.runner.run(guarded.store.put_documents("acl", {'["TOPIC","REGEX","x"]': True}))
    guarded.close()
    with pytest.raises(CorruptLog, match="later version"):
        guarded.open()
    guarded.runner.run(guarded.store.put_documents("acl", {'["TOPIC","REGEX","x"]': None}))


def test_one_that_cannot_be_does_not_hold_up_the_others(guarded):
    codes = create(guarded, creation(""), creation("a"), creation("b", principal="alice"))
    assert codes == [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST]
    assert {name for _, name, *_ in described(guarded)} == {"a"}


def test_one_that_is_there_is_created_gladly(guarded):
    assert create(guarded, creation(), creation()) == [0, 0]
    assert create(guarded, creation()) == [0]
    assert len(described(guarded)) == 1


def test_each_question_of_a_filter(guarded):
    create(
        guarded,
        creation("a"),
        creation("b", Operation.WRITE),
        creation("c", principal="User:bob"),
        creation("d", host="10.0.0.1"),
        creation("e", permission_type=DENY),
        creation("f", resource_type=ResourceType.GROUP),
        creation("g", resource_pattern_type=PREFIXED),
    )

    def names(**wanted):
        return "".join(sorted(name for _, name, *_ in described(guarded, **wanted)))

    assert names() == "abcdefg"
    assert names(operation=Operation.WRITE) == "b"
    assert names(principal_filter="User:bob") == "c"
    assert names(host_filter="10.0.0.1") == "d"
    assert names(permission_type=DENY) == "e"
    assert names(resource_type_filter=ResourceType.GROUP) == "f"
    assert names(pattern_type_filter=PREFIXED) == "g"
    assert names(resource_name_filter="gamma", pattern_type_filter=2) == "g"


def test_a_filter_that_means_nothing_is_refused_and_does_not_hold_up_the_others(guarded):
    create(guarded, creation())
    assert describe(guarded, operation=0).error_code == ErrorCode.INVALID_REQUEST
    bad, good = delete(guarded, delete_filter(pattern_type_filter=0), delete_filter())
    assert bad.error_code == ErrorCode.INVALID_REQUEST
    assert len(good.matching_acls) == 1


def test_an_acl_that_two_filters_match_is_reported_twice(guarded):
    create(guarded, creation())
    results = delete(guarded, delete_filter(), delete_filter(principal_filter="User:alice"))
    assert [len(result.matching_acls) for result in results] == [1, 1]


def test_only_who_may_alter_the_cluster_changes_acls(guarded):
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert create(guarded, creation(), creation(), principal=ALICE) == [refused, refused]
    assert [result.error_code for result in delete(guarded, delete_filter(), principal=ALICE)] == [
        refused
    ]
    assert describe(guarded, principal=ALICE).error_code == refused
    cluster = {"resource_type": ResourceType.CLUSTER}
    create(guarded, creation("kafka-cluster", Operation.DESCRIBE, **cluster))
    assert describe(guarded, principal=ALICE).error_code == 0
    assert create(guarded, creation(), principal=ALICE) == [refused]
    create(guarded, creation("kafka-cluster", Operation.ALTER, **cluster))
    assert create(guarded, creation(), principal=ALICE) == [0]


def test_super_users_may_do_everything_whatever_the_acls_say(guarded):
    create(guarded, creation("*", Operation.ALL, permission_type=DENY, principal="User:*"))
    assert may_read(guarded, who=ADMIN)
    assert not may_read(guarded)


def test_a_disk_that_refuses_leaves_all_as_it_was(guarded):
    create(guarded, creation())
    guarded.files.is_full = True
    assert create(guarded, creation("x")) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert [result.error_code for result in delete(guarded, delete_filter())] == [
        ErrorCode.KAFKA_STORAGE_ERROR
    ]
    guarded.files.is_full = False
    assert may_read(guarded)
    assert not may_read(guarded, "x")
    guarded.reopen()
    assert {name for _, name, *_ in described(guarded)} == {"orders"}


def test_there_are_at_most_so_many(guarded, monkeypatch):
    monkeypatch.setattr("headwater.broker.security.authorizer.MAX_ACLS", 2)
    assert create(guarded, creation("a"), creation("b")) == [0, 0]
    assert create(guarded, creation("c")) == [ErrorCode.POLICY_VIOLATION]
    assert create(guarded, creation("a")) == [0]


def test_without_authentication_there_are_no_acls(asked):
    disabled = ErrorCode.SECURITY_DISABLED
    assert create(asked, creation(), creation()) == [disabled, disabled]
    assert [result.error_code for result in delete(asked, delete_filter())] == [disabled]
    assert describe(asked).error_code == disabled
    assert may_read(asked)
