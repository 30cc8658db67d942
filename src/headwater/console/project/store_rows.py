"""Some rows of a version of a derived store, read from the store itself."""

from collections.abc import Mapping
from typing import Any, Final

from headwater.config import Config
from headwater.errors import UsageError
from headwater.inspect.store_lookup import store_of_write

MOST_ROWS: Final = 100
_CHARACTERS: Final = 500  # of a value


def read_rows(
    config: Config, pipeline: str, write: Mapping[str, Any], version: int, most: int
) -> dict[str, Any]:
    """The first rows that the store gives, with the position that they belong to. Raises what the
    store refuses, and UsageError if there is no such version.
    """
    store = store_of_write(config, pipeline, dict(write))
    try:
        if version not in [existing.number for existing in store.versions()]:
            raise UsageError(f"there is no version {version}")
        rows: list[dict[str, Any]] = []
        columns: list[str] = []
        with store.read(version) as contents:
            batch = contents.position.batch if contents.position else None
            for part in contents.rows:
                columns = columns or list(part.schema.names)
                rows += part.slice(0, most + 1 - len(rows)).to_pylist()
                if len(rows) > most:
                    break
    finally:
        store.close()
    return {
        "shown_version": version,  # `version` is ours, in templates
        "batch": batch,
        "columns": columns,
        "rows": [{name: _shown(row[name]) for name in columns} for row in rows[:most]],
        "has_more": len(rows) > most,
    }


def _shown(value: Any) -> Any:
    """JSON's own values as they are; anything else as a text, cut where it is long."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value.hex(" ") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}…"
