"""Avro schemas: validation, full names, and the canonical text.

The canonical text has the attributes in the order in which Avro's Java library writes them, so that
schemas that it has registered are recognised. Types that a reference defines stay references.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import fastavro
import orjson
from fastavro.schema import UnknownType

from headwater.errors import SchemaRefused
from headwater.schemas.avro.compatibility import incompatibilities
from headwater.schemas.codes import INVALID_SCHEMA

PRIMITIVES: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_LOGICAL: Final = ("logicalType", "precision", "scale")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_NESTING: Final = 192  # of JSON: a level of Avro is up to three
_RESERVED: Final = frozenset(
    {"type", "name", "namespace", "doc", "fields", "aliases", "symbols", "size", "items", "values"}
)
_FIELD_RESERVED: Final = frozenset({"name", "type", "doc", "default", "order", "aliases"})


@dataclass(frozen=True, slots=True, eq=False)
class AvroSchema:
    """`schema` has full names everywhere; `named` has every named type, also the references'."""

    text: str
    schema: Any
    named: Mapping[str, Any]
    type: str = "AVRO"

    def normalized(self) -> str:
        return self.text

    def why_unreadable(self, older: "AvroSchema", *, is_lenient: bool = False) -> list[str]:
        return [
            f"{{errorType:'{found.kind}', description:'{found.description}',"
            f" additionalInfo:'{found.detail}'}}"
            for found in incompatibilities(self.schema, self.named, older.schema, older.named)
        ]


def parse_avro(text: str, references: Mapping[str, str]) -> AvroSchema:
    """Raises SchemaRefused. `references` are texts by name, those that others need first."""
    named: dict[str, Any] = {}
    checked: dict[str, Any] = {}  # fastavro's form of the same
    for name, referenced in references.items():
        where = f"reference {name}: "
        _qualified(_loaded(referenced, where), named, checked, where)
    document = _loaded(text)
    schema = _qualified(document, named, checked)
    canonical = orjson.dumps(_canonical(document, "", "")).decode()
    return AvroSchema(canonical, schema, named)


def _qualified(
    document: Any, named: dict[str, Any], checked: dict[str, Any], where: str = ""
) -> Any:
    """With full names. The checks are fastavro's, and some of the specification that it leaves
    out. Raises SchemaRefused.
    """
    if not isinstance(document, dict | list | str):
        raise SchemaRefused(INVALID_SCHEMA, f"{where}a schema is an object, a list or a name")
    try:
        fastavro.parse_schema(document, checked)
        return _Qualified(named).schema(document, "")
    except UnknownType as error:
        reason = f"there is no type {error.name}"
    except KeyError as error:
        reason = f"{error.args[0]} is missing"
    except Exception as error:  # whatever a document of another shape leads to
        reason = str(error) or type(error).__name__
    raise SchemaRefused(INVALID_SCHEMA, f"{where}no Avro schema: {reason}")


def _loaded(text: str, where: str = "") -> Any:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise SchemaRefused(
            INVALID_SCHEMA,
            f"{where}no JSON: {error.msg} at line {error.lineno} column {error.colno}",
        ) from error
    if nesting(document, _MAX_NESTING) > _MAX_NESTING:
        raise SchemaRefused(INVALID_SCHEMA, f"{where}the schema is nested too deep")
    return document


def nesting(document: Any, limit: int) -> int:
    """How deep lists and objects are within each other; `limit + 1` if deeper than `limit`."""
    depth, level = 0, [document]
    while depth <= limit:
        inside: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                inside += node.values()
            elif isinstance(node, list):
                inside += node
        if not any(isinstance(node, dict | list) for node in level):
            return depth
        level, depth = inside, depth + 1
    return depth


def full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _names_of(node: Mapping[str, Any], around: str) -> tuple[str, str]:
    """The full name of a named type, and the namespace inside of it."""
    name = str(node["name"])
    full = full_name(name, str(node.get("namespace", around) or ""))
    return full, full.rpartition(".")[0]


class _Qualified:
    """Schemas with full names. Named types are collected; where one is used, its name stands."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named

    def schema(self, node: Any, namespace: str) -> Any:
        if isinstance(node, str):
            return node if node in PRIMITIVES else full_name(node, namespace)
        if isinstance(node, list):
            return self._union(node, namespace)
        kind = node["type"]
        if not isinstance(kind, str):
            return self.schema(kind, namespace)
        if kind == "array":
            return {"type": kind, "items": self.schema(node["items"], namespace)}
        if kind == "map":
            return {"type": kind, "values": self.schema(node["values"], namespace)}
        logical = {key: node[key] for key in _LOGICAL if key in node}
        if kind not in _NAMED:
            if kind not in PRIMITIVES:
                return full_name(kind, namespace)
            return {"type": kind, **logical} if "logicalType" in logical else kind
        full, inside = _names_of(node, namespace)
        for part in full.split("."):
            _checked(part)
        made: dict[str, Any] = {
            "type": "record" if kind == "error" else kind,
            "name": full,
            "aliases": [full_name(alias, inside) for alias in node.get("aliases") or ()],
        }
        self._named[full] = made
        if kind == "enum":
            made["symbols"] = [_checked(symbol) for symbol in node["symbols"]]
            made["default"] = node.get("default")
        elif kind == "fixed":
            if type(node["size"]) is not int or node["size"] < 0:
                raise ValueError(f"the size of {full} is no whole number from 0")
            made |= {"size": node["size"], **logical}
        else:
            _refuse_repeated([_checked(field["name"]) for field in node["fields"]], full)
            made["fields"] = [
                {
                    "name": field["name"],
                    "aliases": list(field.get("aliases") or ()),
                    "has_default": "default" in field,
                    "type": self.schema(field["type"], inside),
                }
                for field in node["fields"]
            ]
        return full

    def _union(self, branches: list[Any], namespace: str) -> list[Any]:
        made = [self.schema(branch, namespace) for branch in branches]
        kinds = [branch if isinstance(branch, str) else _unnamed(branch) for branch in made]
        if "union" in kinds:
            raise ValueError("a union is directly in a union")
        _refuse_repeated(kinds, "a union")
        return made


def _refuse_repeated(names: list[str], where: str) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"{name} is there twice in {where}")


def _checked(name: Any) -> str:
    """Raises ValueError for what is no name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{str(name)[:100]} is no name")
    return name


def _unnamed(schema: Any) -> str:
    return "union" if isinstance(schema, list) else str(schema["type"])


def _canonical(node: Any, namespace: str, around: str) -> Any:
    """`namespace` is that of the text around the node; `around` that of the canonical text."""
    if isinstance(node, str):
        return node if node in PRIMITIVES else _short(full_name(node, namespace), around)
    if isinstance(node, list):
        return [_canonical(branch, namespace, around) for branch in node]
    kind = node["type"]
    others = {key: value for key, value in node.items() if key not in _RESERVED}
    if not isinstance(kind, str):
        return _canonical(kind, namespace, around)
    if kind in ("array", "map"):
        inner = "items" if kind == "array" else "values"
        return {"type": kind, inner: _canonical(node[inner], namespace, around), **others}
    if kind not in _NAMED:
        if kind not in PRIMITIVES:
            return _short(full_name(kind, namespace), around)
        return {"type": kind, **others} if others else kind
    full, inside = _names_of(node, namespace)
    made: dict[str, Any] = {"type": kind, "name": full.rpartition(".")[2]}
    if inside != around:
        made["namespace"] = inside
    if node.get("doc") is not None:
        made["doc"] = node["doc"]
    if kind == "enum":
        made["symbols"] = node["symbols"]
    elif kind == "fixed":
        made["size"] = node["size"]
    else:
        made["fields"] = [_canonical_field(field, inside) for field in node["fields"]]
    made |= others
    if node.get("aliases"):
        made["aliases"] = [_short(full_name(alias, inside), inside) for alias in node["aliases"]]
    return made


def _canonical_field(field: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    made = {"name": field["name"], "type": _canonical(field["type"], namespace, namespace)}
    if field.get("doc") is not None:
        made["doc"] = field["doc"]
    if "default" in field:
        made["default"] = field["default"]
    if field.get("order", "ascending") != "ascending":
        made["order"] = field["order"]
    if field.get("aliases"):
        made["aliases"] = field["aliases"]
    made |= {key: value for key, value in field.items() if key not in _FIELD_RESERVED}
    return made


def _short(full: str, namespace: str) -> str:
    space, _, name = full.rpartition(".")
    return name if space == namespace and name not in PRIMITIVES else full
