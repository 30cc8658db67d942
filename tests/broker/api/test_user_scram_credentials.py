"""DescribeUserScramCredentials and AlterUserScramCredentials."""

import pytest

from headwater.broker.security.authorizer import Operation, Principal, ResourceType
from headwater.protocol import scram
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestScramCredentialDeletion,
    AlterUserScramCredentialsRequestScramCredentialUpsertion,
)
from headwater.protocol.messages.create_acls import (
    CreateAclsRequest,
    CreateAclsRequestAclCreation,
)
from headwater.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequestUserName,
)


def upsertion(name="alice", mechanism=1, iterations=4096, salt=b"salt", password="pw", **other):
    hashed = scram.salted_password("SCRAM-SHA-256", password, salt, 4096)
    fields = {"salted_password": hashed, **other}
    return AlterUserScramCredentialsRequestScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=salt, **fields
    )


def deletion(name="alice", mechanism=1):
    return AlterUserScramCredentialsRequestScramCredentialDeletion(name=name, mechanism=mechanism)


def alter(asked, *changes):
    """Error codes by user."""
    request = AlterUserScramCredentialsRequest(
        deletions=[change for change in changes if not hasattr(change, "salt")],
        upsertions=[change for change in changes if hasattr(change, "salt")],
    )
    results = asked.ask(request, 0).results
    assert all(bool(result.error_message) == bool(result.error_code) for result in results)
    return {result.user: ErrorCode(result.error_code).name for result in results}


def describe(asked, *names):
    """(mechanism, iterations) by user, or the error's name."""
    users = [DescribeUserScramCredentialsRequestUserName(name=name) for name in names]
    answer = asked.ask(DescribeUserScramCredentialsRequest(users=users or None), 0)
    assert answer.error_code == 0
    return {
        result.user: ErrorCode(result.error_code).name
        if result.error_code
        else [(info.mechanism, info.iterations) for info in result.credential_infos]
        for result in answer.results
    }


def test_users_come_and_go(asked):
    assert describe(asked) == {}
    assert alter(asked, upsertion(), upsertion("bob", 2, 8192)) == {"alice": "NONE", "bob": "NONE"}
    assert describe(asked) == {"alice": [(1, 4096)], "bob": [(2, 8192)]}
    assert alter(asked, upsertion(mechanism=2)) == {"alice": "NONE"}
    asked.reopen()
    assert describe(asked, "alice") == {"alice": [(1, 4096), (2, 4096)]}
    assert alter(asked, deletion()) == {"alice": "NONE"}
    assert describe(asked, "alice") == {"alice": [(2, 4096)]}
    assert alter(asked, deletion(mechanism=2), deletion("bob", 2)) == {
        "alice": "NONE",
        "bob": "NONE",
    }
    asked.reopen()
    assert describe(asked) == {}


def test_what_is_stored_matches_the_password_and_is_no_password(asked):
    alter(asked, upsertion(password="secret"))
    credential = asked.broker.users.credentials("alice")["SCRAM-SHA-256"]
    assert credential.matches("secret")
    hashed = scram.salted_password("SCRAM-SHA-256", "secret", b"salt", 4096)
    assert hashed not in (credential.stored_key, credential.server_key)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (upsertion(iterations=4095), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion(iterations=16385), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion(name=""), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion(name="x" * 256), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion(salt=b"x" * 257), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion(salted_password=b""), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion(mechanism=0), "UNSUPPORTED_SASL_MECHANISM"),
        (upsertion(mechanism=3), "UNSUPPORTED_SASL_MECHANISM"),
        (deletion("nobody"), "RESOURCE_NOT_FOUND"),
        (deletion("bob", 2), "RESOURCE_NOT_FOUND"),
        (deletion("bob", 9), "UNSUPPORTED_SASL_MECHANISM"),
    ],
)
def test_a_wrong_change_is_refused_and_the_others_are_made(asked, change, error):
    alter(asked, upsertion("bob"))
    assert alter(asked, change, upsertion("carol")) == {change.name: error, "carol": "NONE"}
    assert describe(asked) == {"bob": [(1, 4096)], "carol": [(1, 4096)]}


def test_a_user_is_named_once(asked):
    changes = (upsertion(), upsertion(mechanism=2), upsertion("bob"))
    assert alter(asked, *changes) == {"alice": "DUPLICATE_RESOURCE", "bob": "NONE"}
    assert alter(asked, deletion("bob"), upsertion("bob")) == {"bob": "DUPLICATE_RESOURCE"}
    assert describe(asked, "bob", "bob", "nobody") == {
        "bob": "DUPLICATE_RESOURCE",
        "nobody": "RESOURCE_NOT_FOUND",
    }


def test_a_disk_that_refuses_changes_nothing(asked):
    alter(asked, upsertion("bob"))
    asked.files.is_full = True
    assert alter(asked, upsertion(), deletion("bob")) == {
        "alice": "KAFKA_STORAGE_ERROR",
        "bob": "KAFKA_STORAGE_ERROR",
    }
    asked.files.is_full = False
    assert describe(asked) == {"bob": [(1, 4096)]}
    asked.reopen()
    assert describe(asked) == {"bob": [(1, 4096)]}


def test_the_password_of_a_super_user_is_changed_by_super_users_only(guarded):
    """Who may ALTER the cluster changes other users, but does not become a super user."""
    alice, admin = Principal("alice"), Principal("admin")
    acl = CreateAclsRequestAclCreation(
        resource_type=ResourceType.CLUSTER,
        resource_name="kafka-cluster",
        resource_pattern_type=3,
        principal="User:alice",
        host="*",
        operation=Operation.ALTER,
        permission_type=3,
    )
    guarded.ask(CreateAclsRequest(creations=[acl]), 2, principal=admin)

    def alter_as(principal, *changes) -> dict[str, str]:
        request = AlterUserScramCredentialsRequest(
            deletions=[change for change in changes if not hasattr(change, "salt")],
            upsertions=[change for change in changes if hasattr(change, "salt")],
        )
        results = guarded.ask(request, 0, principal=principal).results
        return {result.user: ErrorCode(result.error_code).name for result in results}

    refused = "CLUSTER_AUTHORIZATION_FAILED"
    assert alter_as(alice, upsertion("admin"), upsertion("bob")) == {
        "admin": refused,
        "bob": "NONE",
    }
    assert "admin" not in guarded.broker.users.names()  # nor is one set who has none yet
    assert alter_as(admin, upsertion("admin")) == {"admin": "NONE"}
    stored = guarded.broker.users.credentials("admin")
    assert alter_as(alice, upsertion("admin", password="mine")) == {"admin": refused}
    assert alter_as(alice, deletion("admin")) == {"admin": refused}
    assert guarded.broker.users.credentials("admin") == stored
    assert guarded.broker.authorizer.denials[Operation.ALTER, ResourceType.USER] == 3
