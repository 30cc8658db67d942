"""Keys of the records of `_schemas`, the topic of a schema registry: Confluent's, as JSON.

    {"keytype":"SCHEMA","subject":"orders-value","version":1,"magic":1}

Both who serves the registry and the broker, which checks ids, read them.
"""

from typing import Any, Final, NamedTuple

import orjson

TOPIC: Final = "_schemas"
SCHEMA, CONFIG, MODE = "SCHEMA", "CONFIG", "MODE"
DELETE_SUBJECT, CLEAR_SUBJECT, NOOP = "DELETE_SUBJECT", "CLEAR_SUBJECT", "NOOP"
_MAGIC: Final = {SCHEMA: 1}


class Key(NamedTuple):
    kind: str
    subject: str | None = None
    version: int = 0


class Malformed(ValueError):
    """A record that is none of the registry's."""


def key_bytes(key: Key) -> bytes:
    members: dict[str, Any] = {"keytype": key.kind}
    if key.subject is not None:
        members["subject"] = key.subject
    if key.kind == SCHEMA:
        members["version"] = key.version
    members["magic"] = _MAGIC.get(key.kind, 0)
    return orjson.dumps(members)


def read_key(data: bytes) -> Key | None:
    """None for kinds that are not ours to handle. Raises Malformed."""
    members = read_object(data)
    kind, subject = members.get("keytype"), members.get("subject")
    if kind not in (SCHEMA, CONFIG, MODE, DELETE_SUBJECT, CLEAR_SUBJECT, NOOP):
        return None
    if subject is not None and not isinstance(subject, str):
        raise Malformed("its subject is no text")
    version = members.get("version", 0)
    if not isinstance(version, int):
        raise Malformed("its version is no number")
    if kind == SCHEMA and (subject is None or version < 1):
        raise Malformed("it has no subject or version")
    return Key(kind, subject, version)


def read_object(data: bytes) -> dict[str, Any]:
    """Raises Malformed."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Malformed("no JSON object")
    return found
