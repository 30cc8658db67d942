"""Topics whose records have to be of their schema, by a setting of the topic.

The setting is headwater.schema.validation.

The schema of a topic T is the subject T-value, that of its keys T-key (naming by topic).
A value in Confluent's wire format has to have the id of one of the subject's versions, and to be
readable by it. A value without an id has to be JSON that the last version, a JSON Schema, allows;
it is stored with the id of that version before it. A record without a value (a tombstone) is always
taken.

This holds for records that come through the gateway. Of those that come by Kafka's protocol the
broker checks the id only (broker/admission/schema_ids.py).
"""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import orjson

from headwater.client.cluster import Cluster
from headwater.client.topics import topic_configs
from headwater.errors import HeadwaterError, SchemaRefused
from headwater.inspect.record_json import Record
from headwater.schema_lookup.lookup import looks_framed, read_value
from headwater.schemas.registry.registry import LATEST, Registry
from headwater.schemas.schema import JSON, Schema
from headwater.schemas.wire_format import framed, unframed

if TYPE_CHECKING:
    from headwater.gateway.app import Gateway
    from headwater.gateway.registry.serving import RegistryServing

CONFIG: Final = "headwater.schema.validation"
_PARTS: Final = {"key": ("key",), "value": ("value",), "both": ("key", "value")}
_AGE_S: Final = 2.0
_MOST_TOPICS: Final = 1000
_PATIENCE_S: Final = 10.0

# From a record to the one that is stored, or to what is wrong with it.
Check = Callable[[Record], Record | str]
# From a JSON value to what is wrong with it, or None.
Validate = Callable[[Any], str | None]


class Validation:
    """Of all topics. Methods are called on the event loop; what blocks runs in threads."""

    def __init__(self, gateway: "Gateway", serving: "RegistryServing") -> None:
        self._gateway = gateway
        self._serving = serving
        self._lock = threading.Lock()  # the cluster is for one thread at a time
        self._cluster: Cluster | None = None
        self._settings: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    async def check_of(self, topic: str) -> Check | None:
        """None: the topic takes any records. Raises HeadwaterError if the broker or the registry
        does not answer.
        """
        if not self._gateway.authentication.has_own_login:
            return None  # there is no registry either
        parts = _PARTS.get(await self._setting(topic))
        if parts is None:
            return None
        checks = [(part, await self._serving.call(_PartCheck, f"{topic}-{part}")) for part in parts]

        def check(record: Record) -> Record | str:
            for part, part_check in checks:
                data = getattr(record, part)
                reason = part_check.why_not(data)
                if reason is not None:
                    return f"the {part} is not of its schema: {reason}"
                stored = part_check.stored(data)
                is_key = part == "key"
                record = record._replace(key=stored) if is_key else record._replace(value=stored)
            return record

        return check

    async def _setting(self, topic: str) -> str:
        read_s, found = self._settings.get(topic, (0.0, ""))
        if time.monotonic() - read_s > _AGE_S:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._gateway.threads, self._read, topic)
            self._settings[topic] = (time.monotonic(), found)
            while len(self._settings) > _MOST_TOPICS:
                self._settings.popitem(last=False)
        return found

    def _read(self, topic: str) -> str:
        with self._lock:
            if self._cluster is None:
                login = self._gateway.authentication.require_own_login()
                bootstrap = self._gateway.config.bootstrap()
                self._cluster = Cluster(bootstrap, login, patience_s=_PATIENCE_S)
            return topic_configs(self._cluster, topic).get(CONFIG, "none")


class _PartCheck:
    """The check of keys or values, by one subject as it is now."""

    def __init__(self, registry: Registry, subject: str) -> None:
        self._registry = registry
        self._subject = subject
        self._schemas: dict[int, Schema] = {}
        self._validate: Validate | None = None
        self._validators: dict[int, Validate] = {}  # by id, of values that have one
        self._problem = ""
        self._last_id = 0
        try:
            self._schemas = {entry.id: entry.schema for entry in registry.versions(subject)}
            last = registry.version(subject, LATEST)
            self._last_id = last.id
            if last.schema.type == JSON:
                parsed: Any = registry.parsed(last.schema)
                self._validate = parsed.validator()
            else:
                self._problem = f"{last.schema.type} has the id of its schema before it"
        except SchemaRefused as error:
            self._problem = str(error)

    def stored(self, data: bytes | None) -> bytes | None:
        """What is stored of data that was found to be right."""
        return data if data is None or looks_framed(data) else framed(self._last_id, data)

    def why_not(self, data: bytes | None) -> str | None:
        if data is None:
            return None
        try:
            if looks_framed(data):
                return self._framed(data)
            if self._validate is None:
                return self._problem
            return self._validate(orjson.loads(data))
        except orjson.JSONDecodeError as error:
            return f"no JSON: {error.msg}"
        except (ValueError, HeadwaterError) as error:
            return str(error)

    def _framed(self, data: bytes) -> str | None:
        schema_id, at = unframed(data)
        schema = self._schemas.get(schema_id)
        if schema is None:
            return f"id {schema_id} is none of {self._subject}'s"
        parsed: Any = self._registry.parsed(schema)
        value = read_value(parsed, data, at)
        if parsed.type != JSON:
            return None
        if schema_id not in self._validators:
            self._validators[schema_id] = parsed.validator()
        return self._validators[schema_id](value)
