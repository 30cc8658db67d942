"""ACLs: their model, and the filters that select them (acl_index.py has what they decide).

The rules are those of Kafka's StandardAuthorizer (KIP-11, KIP-290, KIP-679). A DENY wins over any
ALLOW; what no ALLOW names is denied. An ALLOW of READ, WRITE, DELETE or ALTER allows DESCRIBE too,
one of ALTER_CONFIGS allows DESCRIBE_CONFIGS; a DENY denies nothing but what it names. A literal
pattern means one resource, or with the name `*` every one; a prefixed pattern those that begin
with its name.
"""

import ipaddress
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import orjson

from headwater.protocol.error_codes import ApiError, ErrorCode

CLUSTER_NAME = "kafka-cluster"  # the one resource of type CLUSTER
WILDCARD = "*"
EVERYBODY = "User:*"
MAX_TEXT_CHARS = 4096  # of a name, a principal or a host


# Numbers hash in C; an Enum's own hash, in Python, would be most of what a decision costs.


class Operation(IntEnum):
    """Kafka's AclOperation, by its number on the wire."""

    __hash__ = int.__hash__

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """Kafka's ResourceType, by its number on the wire."""

    __hash__ = int.__hash__

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Kafka's PatternType, by its number on the wire. ANY and MATCH are for filters only."""

    __hash__ = int.__hash__

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """Kafka's AclPermissionType, by its number on the wire."""

    __hash__ = int.__hash__

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_IMPLYING: dict[Operation, frozenset[Operation]] = {
    Operation.DESCRIBE: frozenset(
        {
            Operation.DESCRIBE,
            Operation.READ,
            Operation.WRITE,
            Operation.DELETE,
            Operation.ALTER,
        }
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}


class Acl(NamedTuple):
    """One rule: who (`principal`, from `host`) may or may not do what, with which resources."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    @classmethod
    def checked(
        cls,
        resource_type: int,
        name: str,
        pattern_type: int,
        principal: str,
        host: str,
        operation: int,
        permission: int,
    ) -> "Acl":
        """Raises the error code for one that cannot be."""
        _check_known(resource_type, ResourceType, "resource type")
        _check_known(operation, Operation, "operation")
        if pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
            raise _invalid(f"an ACL's pattern is LITERAL or PREFIXED, not {pattern_type}")
        if permission not in (Permission.ALLOW, Permission.DENY):
            raise _invalid(f"an ACL's permission is ALLOW or DENY, not {permission}")
        if not name:
            raise _invalid("the resource has no name")
        if resource_type == ResourceType.CLUSTER and name != CLUSTER_NAME:
            raise _invalid(f"the only resource of type CLUSTER is {CLUSTER_NAME}")
        kind, colon, who = principal.partition(":")
        if not (kind and colon and who):
            raise _invalid("a principal has the form User:name", principal)
        if not host:
            raise _invalid("the host is missing; * means every host")
        if max(len(name), len(principal), len(host)) > MAX_TEXT_CHARS:
            raise _invalid(f"names end at {MAX_TEXT_CHARS} characters")
        return cls(
            ResourceType(resource_type),
            name,
            PatternType(pattern_type),
            principal,
            host,
            Operation(operation),
            Permission(permission),
        )

    @property
    def key(self) -> str:
        """The ACL as the key of a document; `of_key` reads it."""
        parts = (
            self.resource_type.name,
            self.pattern_type.name,
            self.name,
            self.principal,
            self.host,
            self.operation.name,
            self.permission.name,
        )
        return orjson.dumps(parts).decode()

    @classmethod
    def of_key(cls, key: str) -> "Acl":
        resource_type, pattern_type, name, principal, host, operation, permission = orjson.loads(
            key
        )
        return cls(
            ResourceType[resource_type],
            name,
            PatternType[pattern_type],
            principal,
            host,
            Operation[operation],
            Permission[permission],
        )

    def __str__(self) -> str:
        return (
            f"{self.permission.name} {self.principal} from {self.host} {self.operation.name} on "
            f"{self.pattern_type.name} {self.resource_type.name} {self.name}"
        )

    def speaks_of(self, operation: Operation) -> bool:
        if self.operation in (Operation.ALL, operation):
            return True
        if self.permission is Permission.DENY:
            return False
        return self.operation in _IMPLYING.get(operation, ())


class AclFilter(NamedTuple):
    """Which ACLs are meant; None and ANY leave a question open.

    MATCH means all patterns that a resource of the name falls under, `*` among them.
    """

    resource_type: ResourceType
    name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    @classmethod
    def checked(
        cls,
        resource_type: int,
        name: str | None,
        pattern_type: int,
        principal: str | None,
        host: str | None,
        operation: int,
        permission: int,
    ) -> "AclFilter":
        """Raises the error code for numbers that mean nothing."""
        try:
            found = cls(
                ResourceType(resource_type),
                name,
                PatternType(pattern_type),
                principal,
                host,
                Operation(operation),
                Permission(permission),
            )
        except ValueError as error:
            raise _invalid("a filter of a later version", str(error)) from None
        if (
            ResourceType.UNKNOWN is found.resource_type
            or PatternType.UNKNOWN is found.pattern_type
            or Operation.UNKNOWN is found.operation
            or Permission.UNKNOWN is found.permission
        ):
            raise _invalid("UNKNOWN is no filter")
        return found

    def exact(self) -> Acl | None:
        """The one ACL that is meant, if no question is open."""
        if (
            self.name is None
            or self.principal is None
            or self.host is None
            or self.resource_type is ResourceType.ANY
            or self.pattern_type in (PatternType.ANY, PatternType.MATCH)
            or self.operation is Operation.ANY
            or self.permission is Permission.ANY
        ):
            return None
        return Acl(
            self.resource_type,
            self.name,
            self.pattern_type,
            self.principal,
            self.host,
            self.operation,
            self.permission,
        )

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type is PatternType.MATCH and self.name is not None:
            if acl.pattern_type is PatternType.PREFIXED:
                return self.name.startswith(acl.name)
            return acl.name in (self.name, WILDCARD)
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        return self.name in (None, acl.name)


@lru_cache(maxsize=10_000)
def plain_address(host: str) -> str:
    """One way of writing an address, so that `::1` is `0:0:0:0:0:0:0:1`, and an IPv4 client on an
    IPv6 listener is itself. What is no address stays as it is.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _check_known(number: int, kind: type[ResourceType] | type[Operation], what: str) -> None:
    if number not in kind.__members__.values() or number < 2:  # 0 UNKNOWN, 1 ANY
        raise _invalid(f"an ACL cannot have the {what} {number}")


def _invalid(what: str, detail: str = "") -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, what, detail=detail[:200])
