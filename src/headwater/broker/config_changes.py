"""Changing settings: what AlterConfigs and IncrementalAlterConfigs have in common.

Only topics can be changed at run time. Each resource of a request is checked and changed on its
own: one that is refused does not hold up the others, and nothing of a refused one is changed.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from headwater.broker import config_resources
from headwater.broker.broker import Broker
from headwater.broker.topic_changes import CHANGE_ERRORS, refusal
from headwater.errors import ApiError
from headwater.log.catalog import Topic
from headwater.log.config import topic_config
from headwater.protocol.error_codes import ErrorCode


class NamedConfig(Protocol):
    """A setting in either request."""

    name: str
    value: str | None


class Resource(Protocol):
    """A resource in either request."""

    resource_type: int
    resource_name: str

    @property
    def configs(self) -> Sequence[NamedConfig]: ...


R = TypeVar("R", bound=Resource)
Outcome = tuple[R, ErrorCode, str | None]
# The settings a topic is to have, from those it has and what the request says.
NewConfigs = Callable[[Broker, Topic, R], dict[str, str]]


async def alter(
    broker: Broker, resources: Sequence[R], new_configs: NewConfigs[R], *, validate_only: bool
) -> list[Outcome[R]]:
    """Changes each resource; what became of it, in the order of the request."""
    times_named = Counter((each.resource_type, each.resource_name) for each in resources)
    outcomes: list[Outcome[R]] = []
    for resource in resources:
        try:
            if times_named[resource.resource_type, resource.resource_name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "the resource is named more than once")
            topic = _topic(broker, resource)
            configs = new_configs(broker, topic, resource)
            topic_config(configs, broker.store.topic_defaults)
            if validate_only or configs == topic.configs:
                await asyncio.sleep(0)  # a long request lets others have their turn
            else:
                await broker.store.set_configs(topic.name, configs)
        except CHANGE_ERRORS as error:
            outcomes.append((resource, *refusal(error)))
        else:
            outcomes.append((resource, ErrorCode.NONE, None))
    return outcomes


def _topic(broker: Broker, resource: Resource) -> Topic:
    """The topic to change; raises the error code for anything that cannot be changed."""
    _check_names(resource.configs)
    kind, name = resource.resource_type, resource.resource_name
    if kind == config_resources.BROKER:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "the broker's settings cannot be changed while it runs",
            detail="set them in headwater.toml and start it again",
        )
    if kind != config_resources.TOPIC:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "only the settings of topics can be changed",
            detail=f"kind {kind}, {name}",
        )
    topic = broker.topic(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic", detail=name)
    return topic


def _check_names(configs: Sequence[NamedConfig]) -> None:
    name, times = next(iter(Counter(each.name for each in configs).most_common(1)), ("", 0))
    if times > 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a setting is named more than once", detail=name)


def value_of(config: NamedConfig) -> str:
    """Raises the error code if there is none."""
    if config.value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a setting has no value", detail=config.name)
    return config.value
