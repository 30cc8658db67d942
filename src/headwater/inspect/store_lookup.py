"""The stores of a pipeline, opened without Spark from the status that its process reports."""

from typing import TYPE_CHECKING, Any

from headwater import config

if TYPE_CHECKING:
    from headwater.sinks.contract import Store


def store_of_write(loaded: config.Config, pipeline: str, write: dict[str, Any]) -> "Store":
    """The store of a write, by the entry that the status of its pipeline has for it."""
    from headwater.sinks.contract import Log, Target
    from headwater.sinks.settings import SinkSettings
    from headwater.sinks.stores import store_of

    settings = loaded.sinks.get(write["sink"], SinkSettings(write["sink"], kind="topic"))
    owner = f"{pipeline}/{write['sink']}/{write['table']}"
    target = Target(owner, write["table"], tuple(write["key"]), write["options"])
    return store_of(settings, target, Log(loaded.bootstrap(), loaded.client))
