"""Who may log in and do what: users, ACLs and quotas of a running broker, ours or Apache Kafka."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import admin as kafka_admin

from headwater.broker.security.acls import Operation, PatternType, Permission, ResourceType
from headwater.broker.security.users import DEFAULT_ITERATIONS
from headwater.client import broker_request
from headwater.errors import RequestRefused
from headwater.inspect.kafka_cluster import REQUEST_TIMEOUT_S, KafkaCluster, refused_with, settled
from headwater.protocol import scram
from headwater.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasRequestOpData,
    AlterClientQuotasResponse,
)
from headwater.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from headwater.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from headwater.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

# confluent_kafka's annotations leave these out.
AclResourceType: Final[Any] = vars(kafka_admin)["ResourceType"]
AclPatternType: Final[Any] = vars(kafka_admin)["ResourcePatternType"]
AclOperation: Final[Any] = vars(kafka_admin)["AclOperation"]
AclPermission: Final[Any] = vars(kafka_admin)["AclPermissionType"]
AclBinding: Final[Any] = vars(kafka_admin)["AclBinding"]
AclBindingFilter: Final[Any] = vars(kafka_admin)["AclBindingFilter"]

QUOTAS: Final = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")


# Users


def users_of(cluster: KafkaCluster) -> dict[str, dict[str, int]]:
    """Iterations by mechanism, by user. Raises RequestRefused, BrokerUnreachable."""
    answer = broker_request.ask(
        cluster.bootstrap.split(",")[0],
        DescribeUserScramCredentialsRequest(users=None),
        DescribeUserScramCredentialsResponse,
        0,
        properties=cluster.properties,
    )
    if answer.error_code:
        raise refused_with(answer.error_code, answer.error_message, "cannot list users")
    mechanisms = {number: mechanism for mechanism, number in scram.NUMBERS.items()}
    return {
        result.user: {
            mechanisms[info.mechanism]: info.iterations for info in result.credential_infos
        }
        for result in sorted(answer.results, key=lambda found: found.user)
    }


def set_password(cluster: KafkaCluster, name: str, password: str) -> None:
    """Of a user that there is, or who can log in from now on. Open connections stay open."""
    for mechanism in scram.DIGESTS:
        info = _admin().ScramCredentialInfo(_number(mechanism), DEFAULT_ITERATIONS)
        _alter(cluster, _admin().UserScramCredentialUpsertion(name, info, password.encode()))


def delete_user(cluster: KafkaCluster, name: str) -> None:
    """Nothing happens if there is no such user."""
    for mechanism in users_of(cluster).get(name, {}):
        _alter(cluster, _admin().UserScramCredentialDeletion(name, _number(mechanism)))


def _alter(cluster: KafkaCluster, alteration: Any) -> None:
    """One at a time: a request may name a user but once."""
    settled(cluster.admin.alter_user_scram_credentials([alteration]), "change user")


def _admin() -> Any:
    return kafka_admin


def _number(mechanism: str) -> Any:
    return _admin().ScramMechanism[mechanism.replace("-", "_")]


# ACLs


class ShownAcl(NamedTuple):
    """An ACL as it is shown."""

    principal: str
    permission: str
    operation: str
    resource: str
    pattern: str
    name: str
    host: str


def acls_of(cluster: KafkaCluster, request: DescribeAclsRequest | None = None) -> list[ShownAcl]:
    """All of them, or what `request` filters. Librdkafka takes a refusal for an empty list, so it
    is asked without it. Raises RequestRefused, BrokerUnreachable.
    """
    wanted = request or DescribeAclsRequest(
        resource_type_filter=ResourceType.ANY,
        resource_name_filter=None,
        pattern_type_filter=PatternType.ANY,
        principal_filter=None,
        host_filter=None,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )
    address = cluster.bootstrap.split(",")[0]
    answer = broker_request.ask(
        address, wanted, DescribeAclsResponse, 1, properties=cluster.properties
    )
    if answer.error_code:
        raise refused_with(answer.error_code, answer.error_message, "cannot list ACLs")
    return sorted(
        ShownAcl(
            acl.principal,
            written(Permission(acl.permission_type)),
            written(Operation(acl.operation)),
            written(ResourceType(resource.resource_type)),
            written(PatternType(resource.pattern_type)),
            resource.resource_name,
            acl.host,
        )
        for resource in answer.resources
        for acl in resource.acls
    )


def written(value: Any) -> str:
    """As commands and pages name it: transactional-id."""
    return str(value.name).lower().replace("_", "-")


def add_acl(cluster: KafkaCluster, acl: ShownAcl) -> None:
    """Raises RequestRefused, BrokerUnreachable; ValueError for words that mean nothing."""
    binding = AclBinding(*_parts(acl))
    futures = cluster.admin.create_acls([binding], request_timeout=REQUEST_TIMEOUT_S)
    settled({" ".join(acl): futures[binding]}, "add the ACL:")


def remove_acl(cluster: KafkaCluster, acl: ShownAcl) -> None:
    """Raises RequestRefused if there is none; as `add_acl`."""
    wanted = AclBindingFilter(*_parts(acl))
    futures = cluster.admin.delete_acls([wanted], request_timeout=REQUEST_TIMEOUT_S)
    if not settled({" ".join(acl): futures[wanted]}, "remove the ACL:")[" ".join(acl)]:
        raise RequestRefused("there is no such ACL", hint="it may have been removed meanwhile")


def _parts(acl: ShownAcl) -> tuple[Any, ...]:
    """In the order of AclBinding and AclBindingFilter."""
    return (
        AclResourceType.BROKER
        if acl.resource == "cluster"
        else _named(AclResourceType, acl.resource),
        acl.name,
        _named(AclPatternType, acl.pattern),
        acl.principal,
        acl.host,
        _named(AclOperation, acl.operation),
        _named(AclPermission, acl.permission),
    )


def _named(kind: Any, text: str) -> Any:
    """Raises ValueError."""
    try:
        return kind[text.upper().replace("-", "_")]
    except KeyError as error:
        raise ValueError(text) from error


# Quotas


def quotas_of(cluster: KafkaCluster) -> list[dict[str, Any]]:
    """Each with the entity that it is for: user and client id, None for the default of all."""
    answer = broker_request.ask(
        cluster.bootstrap.split(",")[0],
        DescribeClientQuotasRequest(components=[], strict=False),
        DescribeClientQuotasResponse,
        1,
        properties=cluster.properties,
    )
    if answer.error_code:
        raise refused_with(answer.error_code, answer.error_message, "cannot list quotas")
    return [
        {
            "entity": {part.entity_type: part.entity_name for part in entry.entity},
            "quotas": {value.key: value.value for value in entry.values},
        }
        for entry in answer.entries or ()
    ]


def set_quota(
    cluster: KafkaCluster, entity: Mapping[str, str | None], quota: str, value: float | None
) -> None:
    """None removes it. Raises RequestRefused, BrokerUnreachable."""
    entry = AlterClientQuotasRequestEntryData(
        entity=[
            AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name)
            for kind, name in entity.items()
        ],
        ops=[AlterClientQuotasRequestOpData(key=quota, value=value or 0.0, remove=value is None)],
    )
    answer = broker_request.ask(
        cluster.bootstrap.split(",")[0],
        AlterClientQuotasRequest(entries=[entry]),
        AlterClientQuotasResponse,
        1,
        properties=cluster.properties,
    )
    for result in answer.entries:
        if result.error_code:
            raise refused_with(result.error_code, result.error_message, "the quota is not changed")


def names_of(kinds: Iterable[Any]) -> list[str]:
    """The words for what an ACL may name."""
    return [written(kind) for kind in kinds if kind.name not in ("UNKNOWN", "ANY", "MATCH")]


RESOURCES: Final = [
    name for name in names_of(ResourceType) if name not in ("delegation-token", "user")
]
OPERATIONS: Final = names_of(Operation)
