"""Changes of configs: what AlterConfigs and IncrementalAlterConfigs have in common.

Topics and groups can be changed at run time. Each resource of a request is checked and changed
on its own: one that is refused does not hold up the others, and nothing of it is changed.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from headwater.broker.api.registry import RequestContext
from headwater.broker.broker import Broker
from headwater.broker.configs import resources as config_resources
from headwater.broker.groups import configs as group_configs
from headwater.broker.security.authorizer import Operation
from headwater.broker.topic_changes import CHANGE_ERRORS, refusal
from headwater.log.config import SETTINGS
from headwater.log.settings import Setting
from headwater.protocol.error_codes import ApiError, ErrorCode


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


@dataclass(frozen=True, slots=True)
class Target:
    """What a resource of a request names: the settings it has, may have, and how they change."""

    configs: Mapping[str, str]  # its own
    defaults: Mapping[str, str]  # the broker's
    settings: Mapping[str, Setting]
    check: Callable[[dict[str, str]], object]  # raises ConfigError
    store: Callable[[dict[str, str]], Awaitable[None]]

    def default(self, name: str) -> str:
        """What holds where the resource sets nothing itself."""
        return self.defaults.get(name, self.settings[name].default)


R = TypeVar("R", bound=Resource)
Outcome = tuple[R, ErrorCode, str | None]
# The settings a resource is to have, from those it has and what the request says.
NewConfigs = Callable[[Target, R], dict[str, str]]


async def alter(
    broker: Broker,
    resources: Sequence[R],
    new_configs: NewConfigs[R],
    context: RequestContext,
    *,
    validate_only: bool,
) -> list[Outcome[R]]:
    """Changes each resource; what became of it, in the order of the request."""
    times_named = Counter(
        (resource.resource_type, resource.resource_name) for resource in resources
    )
    outcomes: list[Outcome[R]] = []
    for resource in resources:
        try:
            if times_named[resource.resource_type, resource.resource_name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "the resource is named more than once")
            config_resources.require(
                broker,
                context,
                Operation.ALTER_CONFIGS,
                resource.resource_type,
                resource.resource_name,
            )
            target = _target(broker, resource)
            configs = new_configs(target, resource)
            target.check(configs)
            if validate_only or configs == target.configs:
                await asyncio.sleep(0)  # a long request lets others have their turn
            else:
                await target.store(configs)
        except CHANGE_ERRORS as error:
            outcomes.append((resource, *refusal(error)))
        else:
            outcomes.append((resource, ErrorCode.NONE, None))
    return outcomes


def _target(broker: Broker, resource: Resource) -> Target:
    """What is to change; raises the error code for anything that cannot be changed."""
    _check_names(resource.configs)
    kind, name = resource.resource_type, resource.resource_name
    match kind:
        case config_resources.TOPIC:
            return _topic(broker, name)
        case config_resources.GROUP:
            return _group(broker, name)
        case config_resources.BROKER:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "the broker's settings cannot be changed while it runs",
                detail="set them in headwater.toml and start it again",
            )
        case _:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "only the settings of topics and groups can be changed",
                detail=f"kind {kind}, {name}",
            )


def _topic(broker: Broker, name: str) -> Target:
    topic = broker.topic(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic", detail=name)
    defaults = broker.store.topic_defaults
    return Target(
        topic.configs,
        defaults,
        SETTINGS,
        check=lambda configs: broker.store.checked_config(configs, topic.name),
        store=lambda configs: broker.store.set_configs(name, configs),
    )


def _group(broker: Broker, name: str) -> Target:
    """The group need not exist: settings may be made before its first member comes."""
    if name == "":
        raise ApiError(ErrorCode.INVALID_REQUEST, "the name must not be empty")
    groups = broker.group_configs
    return Target(
        groups.overrides(name),
        groups.defaults,
        group_configs.SETTINGS,
        check=lambda configs: group_configs.check(configs, groups.defaults),
        store=lambda configs: groups.set(name, configs),
    )


def _check_names(configs: Sequence[NamedConfig]) -> None:
    name, times = next(iter(Counter(config.name for config in configs).most_common(1)), ("", 0))
    if times > 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a setting is named more than once", detail=name)


def value_of(config: NamedConfig) -> str:
    """Raises the error code if there is none."""
    if config.value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a setting has no value", detail=config.name)
    return config.value
