"""Avro schemas that options name: read, checked, and none of which a few bytes end the process."""

import os
from typing import Any

import fastavro
import orjson

from headwater.errors import ConfigError


def parsed_schema(option: str, text: str, names: list[str]) -> Any:
    """Of JSON, or of the file of that name; it has these columns. Raises ConfigError, also for
    schemas of which a few bytes could end the process.
    """
    try:
        if not text.lstrip().startswith(("{", "[", '"')):
            with open(os.path.expanduser(text), encoding="utf-8") as file:
                text = file.read()
        schema = orjson.loads(text)
        _refuse_bombs(schema, ())
        parsed = fastavro.parse_schema(schema)
        _refuse_empty_items(parsed, set())
    except OSError as error:
        raise ConfigError(
            f"option avro.{option}: the file cannot be read", detail=str(error)
        ) from error
    except ConfigError:
        raise
    except Exception as error:  # any error of fastavro's
        raise ConfigError(
            f"option avro.{option} is no Avro schema", detail=f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise ConfigError(f"option avro.{option}: the schema is no record")
    existing = [field["name"] for field in parsed["fields"]]
    for name in names:
        if name not in existing:
            raise ConfigError(
                f"column {name} is not in the Avro schema", detail=f"it has {', '.join(existing)}"
            )
    return parsed


def _refuse_bombs(schema: Any, around: tuple[str, ...]) -> None:
    """Refuses schemas of which a few bytes could end the process: a recursive type, which they can
    nest as deep as they like, and items that take no bytes.
    """
    if isinstance(schema, list):
        for branch in schema:
            _refuse_bombs(branch, around)
    elif isinstance(schema, str):
        if schema.rpartition(".")[2] in around:
            raise ConfigError(f"the Avro type {schema} is within itself", hint="leave it out")
    elif isinstance(schema, dict):
        inside = around
        if "name" in schema and "fields" in schema:
            inside = (*around, str(schema["name"]).rpartition(".")[2])
        for field in schema.get("fields") or []:
            _refuse_bombs(field.get("type"), inside)
        for inner in ("type", "items", "values"):
            _refuse_bombs(schema.get(inner), inside)


def _refuse_empty_items(schema: Any, empty: set[str]) -> bool:
    """Whether a value of a parsed schema takes no bytes; `empty` has the named types that do not.
    Raises ConfigError for an array of such values.
    """
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, list):
        for branch in kind:
            _refuse_empty_items(branch, empty)
        return False  # which of them takes a byte
    if isinstance(kind, dict):
        return _refuse_empty_items(kind, empty)
    match kind:
        case "record" | "error":
            # Without stopping at the first: each may have an array inside.
            fields = [_refuse_empty_items(field["type"], empty) for field in schema["fields"]]
            is_empty = all(fields)
        case "fixed":
            is_empty = schema["size"] == 0
        case "array" if _refuse_empty_items(schema["items"], empty):
            raise ConfigError(
                "an array of nulls may be as long as it says, for its items are no bytes",
                hint="records of nulls only and fixed of size 0 are such items, too",
            )
        case "map":
            _refuse_empty_items(schema["values"], empty)
            return False
        case _:
            return kind == "null" or kind in empty
    if is_empty:
        empty.add(schema["name"])
    return is_empty
