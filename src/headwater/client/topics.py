"""Creates and deletes topics, and reads their settings."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headwater.client.cluster import DEFAULT_PATIENCE_S, REQUEST_TIMEOUT_S, RETRIABLE, Cluster
from headwater.client.refusals import error_name
from headwater.errors import RequestRefused
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsRequestCreatableTopicConfig,
    CreateTopicsResponse,
    CreateTopicsResponseCreatableTopicResult,
)
from headwater.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsRequestDeleteTopicState,
    DeleteTopicsResponse,
)
from headwater.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
    DescribeConfigsResponse,
)
from headwater.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from headwater.settings import ClientSettings

READ_BIT = 3  # of AclOperation
_TOPIC = 2  # kind of resource
_BROKERS_DEFAULT = -1


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)


def ensure_topics(
    bootstrap: str,
    login: ClientSettings,
    topics: Iterable[NewTopic],
    *,
    patience_s: float = DEFAULT_PATIENCE_S,
) -> None:
    """Creates those that do not exist, with the broker's default number of replicas. One that
    exists stays as it is. Raises RequestRefused for the first that cannot be created.
    """
    wanted = {topic.name: topic for topic in topics}
    cluster = Cluster(bootstrap, login, patience_s=patience_s)
    patience = cluster.patience("the topics are not created")
    try:
        while wanted:
            request = CreateTopicsRequest(
                topics=[_creatable(topic) for topic in wanted.values()],
                timeout_ms=int(REQUEST_TIMEOUT_S * 1000 / 2),
            )
            answer = cluster.ask_any(request, CreateTopicsResponse, patience, first=4, last=7)
            reason = ""
            for result in answer.topics:
                if result.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    wanted.pop(result.name, None)
                elif result.error_code in RETRIABLE:
                    reason = error_name(result.error_code)
                else:
                    raise _refused(result)
            if wanted:
                patience.wait(reason)
    finally:
        cluster.close()


def delete_topic(
    bootstrap: str,
    login: ClientSettings,
    topic: str,
    *,
    patience_s: float = DEFAULT_PATIENCE_S,
) -> None:
    """Nothing happens if there is no such topic."""
    cluster = Cluster(bootstrap, login, patience_s=patience_s)
    patience = cluster.patience(f"topic {topic} is not deleted")
    request = DeleteTopicsRequest(
        topics=[DeleteTopicsRequestDeleteTopicState(name=topic)],
        topic_names=[topic],
        timeout_ms=int(REQUEST_TIMEOUT_S * 1000 / 2),
    )
    try:
        while True:
            answer = cluster.ask_any(request, DeleteTopicsResponse, patience, first=1, last=6)
            codes = {response.error_code for response in answer.responses}
            if codes <= {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
                return
            (code, *_) = codes - {ErrorCode.NONE}
            if code not in RETRIABLE:
                raise RequestRefused(f"topic {topic} is not deleted", detail=error_name(code))
            patience.wait(error_name(code))
    finally:
        cluster.close()


def topic_configs(cluster: Cluster, topic: str) -> dict[str, str]:
    """What the topic is set to, defaults included; nothing if we may not read it."""
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequestDescribeConfigsResource(
                resource_type=_TOPIC, resource_name=topic, configuration_keys=None
            )
        ]
    )
    patience = cluster.patience(f"the settings of topic {topic} cannot be read")
    answer = cluster.ask_any(request, DescribeConfigsResponse, patience, first=1, last=4)
    return {
        config.name: config.value
        for result in answer.results
        if not result.error_code
        for config in result.configs
        if config.value is not None
    }


def authorized_operations(cluster: Cluster, topic: str) -> int:
    """What the login may do with a topic of this name, whether there is one or not: a bit for each
    AclOperation of Kafka. 0 if it may not see it, or the broker does not say.
    """
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    patience = cluster.patience("the broker does not answer")
    answer = cluster.ask_any(request, MetadataResponse, patience, first=4, last=12)
    for found in answer.topics:
        if found.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return max(found.topic_authorized_operations, 0)
    return 0


def _creatable(topic: NewTopic) -> CreateTopicsRequestCreatableTopic:
    return CreateTopicsRequestCreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=_BROKERS_DEFAULT,
        configs=[
            CreateTopicsRequestCreatableTopicConfig(name=name, value=value)
            for name, value in topic.configs.items()
        ],
    )


def _refused(result: CreateTopicsResponseCreatableTopicResult) -> RequestRefused:
    hint = ""
    if result.error_code in (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ):
        hint = f"`headwater acl add USER --allow create --topic {result.name}` grants it"
    return RequestRefused(
        f"topic {result.name} cannot be created",
        detail=f"{result.error_message or 'refused'} ({error_name(result.error_code)})",
        hint=hint,
    )
