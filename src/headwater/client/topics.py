"""Creating topics."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headwater.client.cluster import (
    DEFAULT_PATIENCE_S,
    REQUEST_TIMEOUT_S,
    RETRIABLE,
    Cluster,
    error_name,
)
from headwater.errors import RequestRefused
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsRequestCreatableTopicConfig,
    CreateTopicsResponse,
    CreateTopicsResponseCreatableTopicResult,
)
from headwater.settings import ClientSettings

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
            for each in answer.topics:
                if each.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    wanted.pop(each.name, None)
                elif each.error_code in RETRIABLE:
                    reason = error_name(each.error_code)
                else:
                    raise _refused(each)
            if wanted:
                patience.wait(reason)
    finally:
        cluster.close()


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
