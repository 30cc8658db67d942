"""JSON Schemas as trees of nodes, one kind of constraint each, for comparison.

An object of a schema may state several constraints (a type, an enum, allOf …): such a one is a
`combined` node of all of them. Keywords without a type ("maxLength") say the type. A $ref is a node
whose target is looked up when it is needed, so schemas may refer to themselves; each place of a
document is one node however it is reached.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urljoin

import orjson

_ANNOTATIONS: Final = frozenset(
    {"$id", "id", "$schema", "$anchor", "$comment", "title", "description", "default", "examples",
     "definitions", "$defs", "connect.type", "deprecated", "readOnly", "writeOnly"}
)  # fmt: skip
_OBJECT: Final = frozenset(
    {"properties", "required", "additionalProperties", "minProperties", "maxProperties",
     "patternProperties", "propertyNames", "dependencies", "dependentRequired",
     "dependentSchemas", "unevaluatedProperties"}
)  # fmt: skip
_ARRAY: Final = frozenset(
    {"items", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains",
     "maxContains", "prefixItems", "unevaluatedItems"}
)  # fmt: skip
_STRING: Final = frozenset({"minLength", "maxLength", "pattern", "format"})
_NUMBER: Final = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
)
_KEYWORDS: Final = {"object": _OBJECT, "array": _ARRAY, "string": _STRING, "number": _NUMBER}
_CRITERIA: Final = ("allOf", "anyOf", "oneOf")
MAX_NODES: Final = 100_000
MAX_DEPTH: Final = 150


class Unresolved(ValueError):
    """A $ref that leads nowhere."""


@dataclass(slots=True, eq=False)
class Node:
    """`kind`: empty, false, string, number, boolean, null, object, array, enum, const, not,
    conditional, combined or ref. `document` is what of the schema belongs to it.
    """

    kind: str
    document: Mapping[str, Any]
    annotations: Mapping[str, Any]
    criterion: str = ""  # of a combined one
    parts: list["Node"] = field(default_factory=list)  # of a combined one; of `not`, the one inside
    is_integer: bool = False
    properties: dict[str, "Node"] = field(default_factory=dict)
    pattern_properties: dict[str, "Node"] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    needed_with: dict[str, frozenset[str]] = field(default_factory=dict)
    schema_with: dict[str, "Node"] = field(default_factory=dict)
    # What is in addition to properties or items: None is anything.
    additional: "Node | None" = None
    unevaluated: "Node | None" = None
    items: list["Node"] = field(default_factory=list)  # by their places
    every_item: "Node | None" = None
    target: str = ""  # of a ref: an address

    @property
    def has_default(self) -> bool:
        return "default" in self.annotations

    def key(self) -> bytes:
        """Equal for equal schemas."""
        document = {**self.annotations, **self.document}
        return self.kind.encode() + orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


class Model:
    """The nodes of one schema and of those that it refers to."""

    def __init__(self, document: Any, references: Mapping[str, Any]) -> None:
        """Raises Unresolved, or ValueError for one that is too large or too deep."""
        self._nodes: dict[tuple[int, str], Node] = {}
        self._places: dict[str, tuple[Any, str]] = {}  # address to a part of a document, and base
        self._built = 0
        for name, referenced in references.items():
            self._index(referenced, name, 0)
            self._places[name] = (referenced, name)
        self._index(document, "", 0)
        self._places.setdefault("", (document, ""))
        self._refs: list[Node] = []
        self.root = self._node(document, "", 0)
        while self._refs:  # each leads somewhere, whether it is reached or not
            self.follow(self._refs.pop())

    def follow(self, node: Node) -> Node:
        """The node itself, or what it refers to in the end."""
        passed = set()
        while node.kind == "ref":
            if node.target in passed:
                raise Unresolved(f"$ref {node.target} refers to itself")
            passed.add(node.target)
            node = self._at(node.target)
        return node

    # Addresses

    def _index(self, node: Any, base: str, depth: int) -> None:
        """Every $id and $anchor, with the base that relative addresses inside of it have."""
        if depth > MAX_DEPTH:
            raise ValueError("the schema is nested too deep")
        if isinstance(node, list):
            for item in node:
                self._index(item, base, depth + 1)
        if not isinstance(node, dict):
            return
        identity = node.get("$id", node.get("id"))
        if isinstance(identity, str):
            base = urljoin(base, identity)
            self._places.setdefault(base.rstrip("#"), (node, base))
        anchor = node.get("$anchor")
        if isinstance(anchor, str):
            self._places.setdefault(f"{base.partition('#')[0]}#{anchor}", (node, base))
        for value in node.values():
            self._index(value, base, depth + 1)

    def _at(self, address: str) -> Node:
        if address in self._places:
            return self._node(*self._places[address], 0)
        document, _, pointer = address.partition("#")
        if document not in self._places or (pointer and not pointer.startswith("/")):
            raise Unresolved(f"$ref {address}: there is no such schema")
        found, base = self._places[document]
        for part in pointer.split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                raise Unresolved(f"$ref {address}: there is no {name}")
        return self._node(found, base, 0)

    # Nodes

    def _node(self, document: Any, base: str, depth: int) -> Node:
        key = (id(document), base)  # documents live as long as the model
        if not isinstance(document, dict):
            return Node("false" if document is False else "empty", {}, {})
        found = self._nodes.get(key)
        if found is None:
            self._built += 1
            if depth > MAX_DEPTH or self._built > MAX_NODES:
                raise ValueError("the schema is too large, or nested too deep")
            found = self._nodes[key] = self._made(document, base, depth)
        return found

    def _made(self, document: Mapping[str, Any], base: str, depth: int) -> Node:
        annotations = {key: document[key] for key in _ANNOTATIONS & document.keys()}
        identity = document.get("$id", document.get("id"))
        if isinstance(identity, str):
            base = urljoin(base, identity)
        parts = list(self._parts(document, base, annotations, depth + 1))
        if not parts:
            return Node("empty", {}, annotations)
        if len(parts) == 1:
            return parts[0]
        rest = {key: value for key, value in document.items() if key not in _ANNOTATIONS}
        return Node("combined", rest, annotations, criterion="allOf", parts=parts)

    def _parts(
        self, document: Mapping[str, Any], base: str, annotations: Mapping[str, Any], depth: int
    ) -> Iterator[Node]:
        reference = document.get("$ref")
        if isinstance(reference, str):
            target = reference if reference in self._places else urljoin(base, reference)
            target = target.removesuffix("#")
            node = Node("ref", {"$ref": reference}, annotations, target=target)
            self._refs.append(node)
            yield node
        if "enum" in document:
            yield Node("enum", {"enum": document["enum"]}, annotations)
        if "const" in document:
            yield Node("const", {"const": document["const"]}, annotations)
        for criterion in _CRITERIA:
            if criterion in document:
                parts = [self._node(part, base, depth) for part in document[criterion]]
                own = {criterion: document[criterion]}
                yield Node("combined", own, annotations, criterion=criterion, parts=parts)
        if "not" in document:
            inside = self._node(document["not"], base, depth)
            yield Node("not", {"not": document["not"]}, annotations, parts=[inside])
        if "if" in document:
            own = {key: document[key] for key in ("if", "then", "else") if key in document}
            yield Node("conditional", own, annotations)
        kind = document.get("type")
        if isinstance(kind, list):
            parts = [self._typed(name, document, base, annotations, depth) for name in kind]
            own = {
                key: document[key]
                for key in ("type", *_OBJECT, *_ARRAY, *_STRING, *_NUMBER)
                if key in document
            }
            yield Node("combined", own, annotations, criterion="anyOf", parts=parts)
        elif kind is not None:
            yield self._typed(kind, document, base, annotations, depth)
        else:
            for name, keywords in _KEYWORDS.items():
                if keywords & document.keys():
                    yield self._typed(name, document, base, annotations, depth)

    def _typed(
        self,
        kind: str,
        document: Mapping[str, Any],
        base: str,
        annotations: Mapping[str, Any],
        depth: int,
    ) -> Node:
        name = "number" if kind == "integer" else kind
        keywords = _KEYWORDS.get(name, frozenset())
        own = {key: value for key, value in document.items() if key in keywords}
        node = Node(name, {"type": kind, **own}, annotations, is_integer=kind == "integer")
        if name == "object":
            self._fill_object(node, document, base, depth)
        elif name == "array":
            self._fill_array(node, document, base, depth)
        return node

    def _fill_object(self, node: Node, document: Mapping[str, Any], base: str, depth: int) -> None:
        required = document.get("required")
        node.required = frozenset(required if isinstance(required, list) else ())
        for name, schema in document.get("properties", {}).items():
            node.properties[name] = self._node(schema, base, depth)
        for pattern, schema in document.get("patternProperties", {}).items():
            node.pattern_properties[pattern] = self._node(schema, base, depth)
        node.additional = self._rest(document, "additionalProperties", base, depth)
        node.unevaluated = self._optional(document, "unevaluatedProperties", base, depth)
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, needed in document.get(keyword, {}).items():
                if isinstance(needed, list):
                    node.needed_with[name] = frozenset(needed)
                else:
                    node.schema_with[name] = self._node(needed, base, depth)

    def _fill_array(self, node: Node, document: Mapping[str, Any], base: str, depth: int) -> None:
        items = document.get("items")
        places = document.get("prefixItems", items if isinstance(items, list) else [])
        node.items = [self._node(item, base, depth) for item in places]
        if places and not isinstance(items, list):
            node.additional = self._rest(document, "items", base, depth)
        else:
            if items is not None and not isinstance(items, list):
                node.every_item = self._node(items, base, depth)
            node.additional = self._rest(document, "additionalItems", base, depth)
        node.unevaluated = self._optional(document, "unevaluatedItems", base, depth)

    def _optional(
        self, document: Mapping[str, Any], keyword: str, base: str, depth: int
    ) -> Node | None:
        return self._node(document[keyword], base, depth) if keyword in document else None

    def _rest(
        self, document: Mapping[str, Any], keyword: str, base: str, depth: int
    ) -> Node | None:
        return (
            None
            if document.get(keyword, True) is True
            else self._optional(document, keyword, base, depth)
        )
