"""Whether a client may do what it asks for. Every API asks here, for every resource it touches."""

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headwater.broker.api.registry import RequestContext

CLUSTER_NAME = "kafka-cluster"  # the one resource of type CLUSTER


class Principal(NamedTuple):
    """Who a connection speaks for."""

    name: str
    kind: str = "User"

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")


class Operation(IntEnum):
    """Kafka's AclOperation, by its number on the wire."""

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

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Authorizer:
    """Without authentication everybody may do everything."""

    def allows(
        self,
        context: "RequestContext",
        operation: Operation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
    ) -> bool:
        return True
