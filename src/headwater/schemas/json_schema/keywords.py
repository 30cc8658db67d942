"""What single keywords of a JSON Schema say: limits, and what else an object or array may have."""

from decimal import Decimal
from typing import Any

import orjson

from headwater.schemas.json_schema.model import Node
from headwater.schemas.json_schema.patterns import matches


def is_false(node: Node | None) -> bool:
    return node is not None and node.kind == "false"


def is_anything(node: Node | None) -> bool:
    return node is None or node.kind == "empty"


def is_open(node: Node) -> bool:
    """Whether an object may have any other properties, an array any other items."""
    return node.additional is None and not node.pattern_properties and is_anything(node.unevaluated)


def partly_open(node: Node, name: str | None = None) -> Node | None:
    """The schema that another property of that name, or another item, has to have; None: there is
    none, it may be anything or must not be.
    """
    if name is not None:
        for pattern, schema in node.pattern_properties.items():
            if matches(pattern, name):
                return schema
    if node.additional is not None:
        return None if node.additional.kind == "false" else node.additional
    found = node.unevaluated
    return None if found is None or found.kind in ("false", "empty") else found


def limit(document: Any, keyword: str) -> Any:
    """The value of a keyword. Draft 4 has true beside a limit that is exclusive."""
    value = document.get(keyword)
    if keyword in ("maximum", "minimum"):
        if document.get(f"exclusive{keyword.capitalize()}") is True:
            return None
    elif value is True and keyword.startswith("exclusive"):
        return document.get(keyword.removeprefix("exclusive").lower())
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def decimal(value: Any) -> Decimal | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Decimal(str(value)) if is_number else None


def json_key(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
