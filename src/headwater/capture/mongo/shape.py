"""Documents in Debezium's envelope: as JSON texts.

    key      {"id": "<JSON of the _id>"}     in the relaxed form
    value    {"before": "{…}", "after": "{…}", "updateDescription": {…}, "source": …, "op": …, …}

This is the seam between shaping, which is the same for all sources, and MongoDB. For tables with
`documents`, and after columns were filtered and masked, shaping takes `key` for the key, `before`
and `after` for the two images, `update_description` for the field that other envelopes have not,
and the schemas below.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import orjson

from headwater.capture.contract import Row
from headwater.capture.mongo.documents import relaxed
from headwater.capture.rules.document_rules import HIDDEN, DocumentRules

# With the blanks that Debezium's keys have: keys are compared and hashed as bytes.
_key_text: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ": ")).encode

KEY_FIELDS: Final = ({"type": "string", "optional": False, "field": "id"},)
DOCUMENT_SCHEMA: Final = {  # of `before` and `after`
    "type": "string",
    "optional": True,
    "name": "io.debezium.data.Json",
    "version": 1,
}
UPDATE_DESCRIPTION_SCHEMA: Final = {
    "type": "struct",
    "optional": True,
    "name": "io.debezium.connector.mongodb.changestream.updatedescription",
    "version": 1,
    "field": "updateDescription",
    "fields": [
        {
            "type": "array",
            "optional": True,
            "items": {"type": "string", "optional": False},
            "field": "removedFields",
        },
        {**DOCUMENT_SCHEMA, "field": "updatedFields"},
        {
            "type": "array",
            "optional": True,
            "items": {
                "type": "struct",
                "optional": False,
                "name": "io.debezium.connector.mongodb.changestream.truncatedarray",
                "version": 1,
                "fields": [
                    {"type": "string", "optional": False, "field": "field"},
                    {"type": "int32", "optional": False, "field": "size"},
                ],
            },
            "field": "truncatedArrays",
        },
    ],
}


def text(row: Row) -> str:
    """A document as the envelope holds it."""
    return orjson.dumps(row).decode()


def key(row: Row) -> dict[str, str]:
    return {"id": _key_text(relaxed(row["_id"]))}


def before(row: Row | None) -> str | None:
    """Without a pre-image there is the _id alone, which the key has already: null, as Debezium
    has it.
    """
    return None if row is None or len(row) == 1 else text(row)


def after(row: Row | None) -> str | None:
    return None if row is None else text(row)


def update_description(
    extra: Mapping[str, Any] | None, rules: DocumentRules | None = None
) -> dict[str, Any] | None:
    """What an update changed, or None. A path below a field that a rule changes or takes away is
    left out, for a part of a masked value would show through.
    """
    if extra is None or (description := extra.get("updateDescription")) is None:
        return None
    updated = description.get("updatedFields") or {}
    removed = description.get("removedFields") or []
    truncated = description.get("truncatedArrays") or []
    if rules is not None:
        shown = {path: rules.updated(path, value) for path, value in updated.items()}
        updated = {path: value for path, value in shown.items() if value is not HIDDEN}
        removed = [path for path in removed if not rules.is_ruled(path)]
        truncated = [array for array in truncated if not rules.is_ruled(array["field"])]
    return {
        "removedFields": removed or None,
        "updatedFields": text(updated),
        "truncatedArrays": [
            {"field": array["field"], "size": array["newSize"]} for array in truncated
        ]
        or None,
    }
