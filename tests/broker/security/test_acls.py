"""What ACLs decide, by Kafka's rules: single cases, and all of them against a slow judge."""

import random
from typing import ClassVar

import pytest

from headwater.broker.security.acl_index import AclIndex
from headwater.broker.security.acls import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from headwater.protocol.error_codes import ApiError, ErrorCode

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL


def acl(
    name="orders",
    operation=READ,
    *,
    permission=ALLOW,
    pattern=LITERAL,
    who="User:alice",
    host="*",
    kind=TOPIC,
) -> Acl:
    return Acl(kind, name, pattern, who, host, operation, permission)


def index_of(*acls: Acl) -> AclIndex:
    index = AclIndex()
    for acl in acls:
        index.add(acl)
    return index


def allows(*acls, name="orders", operation=READ, who="User:alice", host="10.0.0.1", kind=TOPIC):
    return index_of(*acls).allows(who, host, operation, kind, name)


class TestAllows:
    def test_nothing_is_allowed_that_no_acl_allows(self):
        assert not allows()
        assert not allows(acl("payments"))
        assert not allows(acl(), operation=WRITE)
        assert not allows(acl(), who="User:bob")
        assert not allows(acl(), kind=GROUP)
        assert allows(acl())

    def test_a_deny_wins_over_every_allow(self):
        denied = acl(permission=DENY)
        assert not allows(acl(), denied)
        assert not allows(denied, acl(operation=ALL), acl("*"), acl("o", pattern=PREFIXED))
        assert not allows(acl(), acl("*", permission=DENY))
        assert not allows(acl(), acl("ord", permission=DENY, pattern=PREFIXED))
        assert not allows(acl(), acl(permission=DENY, who="User:*"))
        assert not allows(acl(), acl(operation=ALL, permission=DENY))

    def test_a_prefix_means_all_names_that_begin_with_it(self):
        prefixed = acl("ord", pattern=PREFIXED)
        assert allows(prefixed)
        assert allows(prefixed, name="ord")
        assert not allows(prefixed, name="or")
        assert not allows(prefixed, name="the-orders")
        assert not allows(acl("ord"), name="orders")

    def test_the_star_is_every_name_when_literal_and_itself_when_prefixed(self):
        assert allows(acl("*"))
        assert not allows(acl("*", pattern=PREFIXED))
        assert allows(acl("*", pattern=PREFIXED), name="*x")

    def test_everybody_and_every_host(self):
        assert allows(acl(who="User:*"))
        assert allows(acl(host="10.0.0.1"))
        assert not allows(acl(host="10.0.0.2"))
        assert not allows(acl(), acl(host="10.0.0.1", permission=DENY))
        assert allows(acl(), acl(host="10.0.0.2", permission=DENY))

    def test_an_ipv6_host_may_be_written_in_any_form(self):
        assert allows(acl(host="0:0:0:0:0:0:0:1"), host="::1")

    @pytest.mark.parametrize(
        "implying", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER]
    )
    def test_what_implies_describe(self, implying):
        assert allows(acl(operation=implying), operation=DESCRIBE)
        # A denial denies nothing else.
        assert allows(acl(operation=DESCRIBE), acl(operation=implying, permission=DENY),
                      operation=DESCRIBE)  # fmt: skip

    def test_what_implies_describe_configs(self):
        configs = Operation.DESCRIBE_CONFIGS
        assert allows(acl(operation=Operation.ALTER_CONFIGS), operation=configs)
        assert not allows(acl(operation=Operation.ALTER), operation=configs)
        assert not allows(acl(operation=Operation.CREATE), operation=DESCRIBE)
        assert not allows(acl(operation=DESCRIBE), operation=READ)

    def test_all_is_every_operation(self):
        for operation in list(Operation)[3:]:
            assert allows(acl(operation=ALL), operation=operation)

    def test_what_is_removed_decides_nothing(self):
        one, other = acl("o", pattern=PREFIXED), acl("or", pattern=PREFIXED)
        index = index_of(one, other)
        index.remove(one)
        assert index.allows("User:alice", "h", READ, TOPIC, "orders")
        index.remove(other)
        assert not index.allows("User:alice", "h", READ, TOPIC, "orders")
        assert len(index) == 0


class TestAllowsAny:
    @pytest.mark.parametrize(
        ("acls", "expected"),
        [
            ([], False),
            ([acl(operation=WRITE)], True),
            ([acl(operation=ALL)], True),
            ([acl(operation=READ)], False),
            ([acl(operation=WRITE, who="User:bob")], False),
            ([acl(operation=WRITE), acl("*", WRITE, permission=DENY)], False),
            ([acl(operation=WRITE), acl(operation=WRITE, permission=DENY)], False),
            ([acl(operation=WRITE), acl("o", ALL, permission=DENY, pattern=PREFIXED)], False),
            ([acl(operation=WRITE), acl("x", ALL, permission=DENY, pattern=PREFIXED)], True),
            # The prefix has more than the one that is denied.
            ([acl("o", WRITE, pattern=PREFIXED), acl(operation=WRITE, permission=DENY)], True),
            ([acl("*", WRITE), acl("o", WRITE, permission=DENY, pattern=PREFIXED)], True),
            ([acl(operation=WRITE, kind=GROUP)], False),
            ([acl(operation=WRITE, host="10.9.9.9")], False),
        ],
    )
    def test_is_there_a_topic_to_write_to(self, acls, expected):
        assert index_of(*acls).allows_any("User:alice", "10.0.0.1", WRITE, TOPIC) is expected


def slow_judge(acls, who, host, operation, kind, name) -> bool:
    """Kafka's rules, word for word, without an index."""

    def applies(acl: Acl) -> bool:
        named = (
            name.startswith(acl.name) if acl.pattern_type is PREFIXED else acl.name in (name, "*")
        )
        implied = {
            DESCRIBE: {READ, WRITE, Operation.DELETE, Operation.ALTER},
            Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
        }.get(operation, set())
        meant = acl.operation in (ALL, operation) or (
            acl.permission is ALLOW and acl.operation in implied
        )
        return (
            acl.resource_type is kind
            and named
            and acl.principal in (who, "User:*")
            and acl.host in (host, "*")
            and meant
        )

    found = {acl.permission for acl in acls if applies(acl)}
    return ALLOW in found and DENY not in found


def test_the_index_decides_as_a_slow_judge_does():
    chosen = random.Random(7)
    names = ["*", "a", "ab", "abc", "b", "ba"]
    people = ["User:alice", "User:bob", "User:*"]
    operations = [*list(Operation)[2:13]]
    for _ in range(300):
        acls = {
            Acl(
                chosen.choice([TOPIC, GROUP]),
                chosen.choice(names),
                chosen.choice([LITERAL, PREFIXED]),
                chosen.choice(people),
                chosen.choice(["*", "h1", "h2"]),
                chosen.choice(operations),
                chosen.choice([ALLOW, ALLOW, DENY]),
            )
            for _ in range(12)
        }
        index = index_of(*acls)
        for removed in list(acls)[:3]:
            index.remove(removed)
            acls.discard(removed)
        for who in people[:2]:
            for host in ("h1", "h3"):
                for operation in operations[1:]:
                    for name in names[1:]:
                        asked = (who, host, operation, TOPIC, name)
                        assert index.allows(*asked) == slow_judge(acls, *asked), (acls, asked)


def test_a_decision_among_ten_thousand_acls_takes_no_walk_over_them(monkeypatch):
    index = index_of(
        *(acl(f"topic-{n}", who=f"User:{n % 100}") for n in range(5000)),
        *(acl(f"team-{n}-", pattern=PREFIXED, who=f"User:{n % 100}") for n in range(5000)),
    )

    looked_at = []
    speaks_of = Acl.speaks_of
    monkeypatch.setattr(
        Acl, "speaks_of", lambda acl, asked: looked_at.append(acl) or speaks_of(acl, asked)
    )
    assert index.allows("User:7", "h", READ, TOPIC, "team-4907-orders")
    assert not index.allows("User:8", "h", READ, TOPIC, "team-4907-orders")
    assert len(looked_at) == 1


class TestFilter:
    ACLS = (
        acl("orders"),
        acl("*"),
        acl("ord", pattern=PREFIXED),
        acl("x", pattern=PREFIXED),
        acl("orders", WRITE, who="User:bob", permission=DENY, host="h"),
        acl("orders", kind=GROUP),
    )

    def names(self, **wanted) -> set[tuple[str, int]]:
        fields = {
            "resource_type": ResourceType.ANY,
            "name": None,
            "pattern_type": PatternType.ANY,
            "principal": None,
            "host": None,
            "operation": Operation.ANY,
            "permission": Permission.ANY,
            **wanted,
        }
        found = AclFilter.checked(**fields)
        return {self.ACLS.index(acl) for acl in self.ACLS if found.matches(acl)}

    def test_without_a_question_all_are_meant(self):
        assert self.names() == {0, 1, 2, 3, 4, 5}

    def test_each_question(self):
        assert self.names(resource_type=GROUP) == {5}
        assert self.names(principal="User:bob") == {4}
        assert self.names(host="h") == {4}
        assert self.names(operation=WRITE) == {4}
        assert self.names(permission=DENY) == {4}
        assert self.names(pattern_type=PREFIXED) == {2, 3}

    def test_names_by_pattern_type(self):
        assert self.names(name="orders", pattern_type=LITERAL) == {0, 4, 5}
        assert self.names(name="ord", pattern_type=PREFIXED) == {2}
        assert self.names(name="ord", pattern_type=PatternType.ANY) == {2}
        assert self.names(name="*", pattern_type=LITERAL) == {1}
        assert self.names(name="orders", pattern_type=PatternType.MATCH) == {0, 1, 2, 4, 5}

    def test_one_without_an_open_question_is_found_at_once(self):
        for acl in self.ACLS:
            assert AclFilter(*acl).exact() == acl
            for field in acl._fields:
                asked = AclFilter(*acl)._asdict()
                asked[field] = None if isinstance(asked[field], str) else 1  # ANY
                assert AclFilter.checked(**asked).exact() is None

    @pytest.mark.parametrize("field", ["resource_type", "pattern_type", "operation", "permission"])
    @pytest.mark.parametrize("number", [0, 99, -1])
    def test_what_means_nothing_is_refused(self, field, number):
        with pytest.raises(ApiError) as refused:
            self.names(**{field: number})
        assert refused.value.code == ErrorCode.INVALID_REQUEST


class TestChecked:
    GOOD: ClassVar = {
        "resource_type": 2,
        "name": "t",
        "pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission": 3,
    }

    def test_a_good_one_comes_back_from_its_key(self):
        for kind in (LITERAL, PREFIXED):
            made = Acl.checked(**{**self.GOOD, "pattern_type": kind, "name": 'a"b\n, é'})
            assert Acl.of_key(made.key) == made

    @pytest.mark.parametrize(
        "wrong",
        [
            {"resource_type": 0}, {"resource_type": 1}, {"resource_type": 42}, {"name": ""},
            {"pattern_type": 1}, {"pattern_type": 2}, {"pattern_type": 0}, {"pattern_type": 9},
            {"principal": "alice"}, {"principal": ""}, {"principal": "User:"}, {"host": ""},
            {"operation": 0}, {"operation": 1}, {"operation": 77}, {"permission": 1},
            {"permission": 0}, {"permission": 4}, {"name": "x" * 5000},
            {"resource_type": 4, "name": "my-cluster"},
        ],
    )  # fmt: skip
    def test_a_bad_one_is_an_invalid_request(self, wrong):
        with pytest.raises(ApiError) as refused:
            Acl.checked(**{**self.GOOD, **wrong})
        assert refused.value.code == ErrorCode.INVALID_REQUEST

    def test_the_cluster_has_one_name(self):
        Acl.checked(**{**self.GOOD, "resource_type": 4, "name": "kafka-cluster"})
