"""Index of all ACLs, which decides what a principal may do with a resource."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain

from headwater.broker.security.acls import (
    EVERYBODY,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    plain_address,
)


class AclIndex:
    """All ACLs, found by resource and principal in a time that hardly depends on their number."""

    def __init__(self) -> None:
        # By pattern, type, name and principal; `_prefix_chars` has the lengths to look for.
        self._rules: dict[tuple[PatternType, ResourceType, str, str], list[Acl]] = {}
        self._prefix_chars: defaultdict[ResourceType, Counter[int]] = defaultdict(Counter)
        self._all: dict[Acl, None] = {}  # in the order in which they were added
        self._by_principal: defaultdict[str, dict[Acl, None]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._all

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._all)

    def add(self, acl: Acl) -> None:
        if acl not in self._all:
            self._all[acl] = self._by_principal[acl.principal][acl] = None
            self._rules.setdefault(_key_of(acl), []).append(acl)
            if acl.pattern_type is PatternType.PREFIXED:
                self._prefix_chars[acl.resource_type][len(acl.name)] += 1

    def remove(self, acl: Acl) -> None:
        if acl in self._all:
            del self._all[acl], self._by_principal[acl.principal][acl]
            if not self._by_principal[acl.principal]:
                del self._by_principal[acl.principal]
            rules = self._rules[_key_of(acl)]
            rules.remove(acl)
            if not rules:
                del self._rules[_key_of(acl)]
            if acl.pattern_type is PatternType.PREFIXED:
                lengths = self._prefix_chars[acl.resource_type]
                lengths[len(acl.name)] -= 1
                if not lengths[len(acl.name)]:
                    del lengths[len(acl.name)]

    def allows(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """The ACLs of one resource."""
        is_allowed = False
        for who in (principal, EVERYBODY):
            for pattern_type, pattern in self._patterns(kind, name):
                for acl in self._rules.get((pattern_type, kind, pattern, who), ()):
                    if acl.speaks_of(operation) and _is_from(acl, host):
                        if acl.permission is Permission.DENY:
                            return False
                        is_allowed = True
        return is_allowed

    def allows_any(
        self, principal: str, host: str, operation: Operation, kind: ResourceType
    ) -> bool:
        """Whether there could be a resource of the kind for which `allows` is true (KIP-679).

        As in Kafka, only ACLs of exactly this operation and of ALL count.
        """
        allowed: list[Acl] = []
        denied: set[tuple[PatternType, str]] = set()
        for acl in chain(*(self._by_principal.get(who, ()) for who in (principal, EVERYBODY))):
            if (
                acl.resource_type is kind
                and acl.operation in (operation, Operation.ALL)
                and _is_from(acl, host)
            ):
                if acl.permission is Permission.ALLOW:
                    allowed.append(acl)
                else:
                    denied.add((acl.pattern_type, acl.name))
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        return any(not _is_denied_whole(acl, denied) for acl in allowed)

    def _patterns(self, kind: ResourceType, name: str) -> Iterator[tuple[PatternType, str]]:
        """The patterns that a resource of the name falls under, if there are such."""
        yield PatternType.LITERAL, name
        if name != WILDCARD:
            yield PatternType.LITERAL, WILDCARD
        for chars in self._prefix_chars[kind]:
            if chars <= len(name):
                yield PatternType.PREFIXED, name[:chars]


def _is_denied_whole(acl: Acl, denied: set[tuple[PatternType, str]]) -> bool:
    """Whether every resource that `acl` names falls under a denied pattern."""
    if acl.pattern_type is PatternType.LITERAL:
        if acl.name == WILDCARD:
            return False
        if (PatternType.LITERAL, acl.name) in denied:
            return True
    return any(
        (PatternType.PREFIXED, acl.name[:chars]) in denied for chars in range(1, len(acl.name) + 1)
    )


def _key_of(acl: Acl) -> tuple[PatternType, ResourceType, str, str]:
    return acl.pattern_type, acl.resource_type, acl.name, acl.principal


def _is_from(acl: Acl, host: str) -> bool:
    return acl.host in (WILDCARD, host) or plain_address(acl.host) == host
