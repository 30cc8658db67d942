"""The differences of two JSON Schemas, each with its path.

Which of them a reader of the new schema can live with is a set of names (`compatible_changes`). A
pair of nodes is compared once. A pair that is reached again while it is being compared, which
recursive schemas lead to, counts as readable; if that proves wrong, all is compared again with what
is known by then.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from headwater.errors import SchemaRefused
from headwater.schemas.codes import INVALID_SCHEMA
from headwater.schemas.json_schema.changes import READABLE, READABLE_LENIENT
from headwater.schemas.json_schema.keywords import (
    decimal,
    is_anything,
    is_false,
    is_open,
    json_key,
    limit,
    partly_open,
)
from headwater.schemas.json_schema.matching import matching
from headwater.schemas.json_schema.model import Model, Node

_MAX_PAIRS: Final = 50_000


class Difference(NamedTuple):
    kind: str
    path: tuple[str, ...]

    @property
    def pointer(self) -> str:
        return "#/" + "/".join(self.path)


_Pair = tuple[int, int]


def differences(old: Model, new: Model, *, is_lenient: bool = False) -> list[Difference]:
    """All of them; `is_readable` says which matter."""
    unreadable: dict[_Pair, list[Difference]] = {}
    while True:
        comparison = _Comparison(old, new, READABLE_LENIENT if is_lenient else READABLE, unreadable)
        found = comparison.compare(old.root, new.root)
        known = comparison.unreadable()
        if not comparison.has_assumed or known.keys() == unreadable.keys():
            return found
        unreadable = known


def is_readable(difference: Difference, *, is_lenient: bool = False) -> bool:
    """Whether what the old schema allows is still valid, this difference notwithstanding."""
    return difference.kind in (READABLE_LENIENT if is_lenient else READABLE)


class _Comparison:
    def __init__(
        self,
        old: Model,
        new: Model,
        readable: frozenset[str],
        unreadable: dict[_Pair, list[Difference]],
    ) -> None:
        self._follow_old: Callable[[Node], Node] = old.follow
        self._follow_new: Callable[[Node], Node] = new.follow
        self._readable = readable
        self._known_unreadable = unreadable
        self._compared: dict[_Pair, list[Difference]] = {}
        self._under_way: set[_Pair] = set()
        self._nodes: list[Node] = []  # so that ids stay theirs
        self.has_assumed = False

    def unreadable(self) -> dict[_Pair, list[Difference]]:
        return {
            pair: found for pair, found in self._compared.items() if not self.is_readable(found)
        }

    def is_readable(self, found: list[Difference]) -> bool:
        return all(difference.kind in self._readable for difference in found)

    def compare(self, old: Node | None, new: Node | None) -> list[Difference]:
        """With paths that begin at these nodes."""
        if old is None or new is None:
            kind = "SCHEMA_ADDED" if new is not None else "SCHEMA_REMOVED"
            return [] if old is new else [Difference(kind, ())]
        old, new = self._follow_old(old), self._follow_new(new)
        pair = (id(old), id(new))
        if pair in self._compared:
            return self._compared[pair]
        if pair in self._under_way:
            if pair in self._known_unreadable:
                return self._known_unreadable[pair]
            self.has_assumed = True
            return []
        if len(self._compared) > _MAX_PAIRS:
            raise SchemaRefused(INVALID_SCHEMA, "the schemas are too complex to be compared")
        self._under_way.add(pair)
        self._nodes += (old, new)
        found = self._compared[pair] = _Pairing(self, old, new).run()
        self._under_way.remove(pair)
        return found

    def reversed(self, old: Node, new: Node) -> list[Difference]:
        """What is inside of `not`: the other way round."""
        self._follow_old, self._follow_new = self._follow_new, self._follow_old
        try:
            return self.compare(old, new)
        finally:
            self._follow_old, self._follow_new = self._follow_new, self._follow_old


class _Pairing:
    """The comparison of two nodes that are no references."""

    def __init__(self, comparison: _Comparison, old: Node, new: Node) -> None:
        self._comparison = comparison
        self._old = old
        self._new = new
        self._path: tuple[str, ...] = ()
        self._found: list[Difference] = []

    def run(self) -> list[Difference]:
        old, new = self._old, self._new
        if self._is_one_of_alternatives():
            return self._found
        if old.kind != new.kind:
            is_bytes = (
                old.annotations.get("connect.type")
                == new.annotations.get("connect.type")
                == "bytes"
            )
            if old.kind != "false" and new.kind != "empty" and not is_bytes:
                self._add("TYPE_CHANGED")
            return self._found
        for keyword, kind in (
            ("$id", "ID_CHANGED"),
            ("title", "TITLE_CHANGED"),
            ("description", "DESCRIPTION_CHANGED"),
            ("default", "DEFAULT_CHANGED"),
        ):
            if old.annotations.get(keyword) != new.annotations.get(keyword):
                self._add(kind)
        match old.kind:
            case "string":
                self._limits("maxLength", "minLength")
                self._pattern()
            case "number":
                self._numbers()
            case "const":
                if json_key(old.document["const"]) != json_key(new.document["const"]):
                    self._add("ENUM_ARRAY_CHANGED", "const")
            case "enum":
                self._enums()
            case "not":
                self._nots()
            case "combined":
                self._alternatives()
            case "object":
                self._objects()
            case "array":
                self._arrays()
        return self._found

    def _add(self, kind: str, *path: str) -> None:
        self._found.append(Difference(kind, (*self._path, *path)))

    def _add_all(self, found: list[Difference]) -> None:
        self._found += [Difference(kind, (*self._path, *path)) for kind, path in found]

    @contextmanager
    def _at(self, *path: str) -> Iterator[None]:
        before = self._path
        self._path = (*before, *path)
        yield
        self._path = before

    # Combinations

    def _is_one_of_alternatives(self) -> bool:
        """One side is a combination, the other is not, and one of its parts is readable."""
        old, new = self._old, self._new
        if (old.kind == "combined") == (new.kind == "combined"):
            return False
        whole = new if new.kind == "combined" else old
        extra = None
        if len(whole.parts) > 1:
            if whole is new and whole.criterion in ("anyOf", "oneOf"):
                extra = "SUM_TYPE_EXTENDED"
            elif whole is old and whole.criterion == "allOf":
                extra = "PRODUCT_TYPE_NARROWED"
            else:
                return False
        for part in whole.parts:
            found = self._comparison.compare(*((old, part) if whole is new else (part, new)))
            if self._comparison.is_readable(found):
                self._add_all(found)
                if extra is not None:
                    self._add(extra)
                return True
        return False

    def _alternatives(self) -> None:
        old, new = self._old, self._new
        if old.criterion != new.criterion:
            is_wider = (
                new.criterion == "anyOf"
                or (len(old.parts) == 1 and (len(new.parts) == 1 or new.criterion == "oneOf"))
                or (len(new.parts) == 1 and old.criterion == "allOf")
            )
            self._add("COMBINED_TYPE_EXTENDED" if is_wider else "COMBINED_TYPE_CHANGED")
            if not is_wider:
                return
        olds = list({part.key(): part for part in old.parts}.values())
        news = list({part.key(): part for part in new.parts}.values())
        if len(olds) < len(news):
            is_product = new.criterion == "allOf"
            self._add("PRODUCT_TYPE_EXTENDED" if is_product else "SUM_TYPE_EXTENDED")
        elif len(olds) > len(news):
            is_product = old.criterion == "allOf"
            self._add("PRODUCT_TYPE_NARROWED" if is_product else "SUM_TYPE_NARROWED")
        edges: dict[tuple[int, int], list[Difference]] = {}
        for before, part in enumerate(olds):
            for after, other in enumerate(news):
                found = self._comparison.compare(part, other)
                if self._comparison.is_readable(found):
                    edges[before, after] = found
        matched = matching(edges, len(olds))
        for before, after in matched:
            with self._at(old.criterion, str(before)):
                self._add_all(edges[before, after])
        if len(matched) < min(len(olds), len(news)):
            self._add("COMBINED_TYPE_SUBSCHEMAS_CHANGED")

    def _nots(self) -> None:
        found = self._comparison.reversed(self._new.parts[0], self._old.parts[0])
        is_narrower = self._comparison.is_readable(found)
        self._add("NOT_TYPE_NARROWED" if is_narrower else "NOT_TYPE_EXTENDED", "not")

    # Values

    def _limits(self, *keywords: str) -> None:
        for keyword in keywords:
            before = limit(self._old.document, keyword)
            after = limit(self._new.document, keyword)
            if before == after:
                continue
            name = re.sub("([A-Z])", r"_\1", keyword).upper()
            if before is None:
                self._add(f"{name}_ADDED", keyword)
            elif after is None:
                self._add(f"{name}_REMOVED", keyword)
            else:
                self._add(f"{name}_{'INCREASED' if before < after else 'DECREASED'}", keyword)

    def _pattern(self) -> None:
        before, after = (node.document.get("pattern") for node in (self._old, self._new))
        if before != after:
            verb = "ADDED" if before is None else "REMOVED" if after is None else "CHANGED"
            self._add(f"PATTERN_{verb}", "pattern")

    def _numbers(self) -> None:
        self._limits("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum")
        before, after = (decimal(node.document.get("multipleOf")) for node in
                         (self._old, self._new))  # fmt: skip
        if before != after:
            if before is None or after is None:
                verb = "ADDED" if before is None else "REMOVED"
            elif before and not after % before:
                verb = "EXPANDED"
            elif after and not before % after:
                verb = "REDUCED"
            else:
                verb = "CHANGED"
            self._add(f"MULTIPLE_OF_{verb}", "multipleOf")
        if self._old.is_integer != self._new.is_integer:
            self._add("TYPE_EXTENDED" if self._old.is_integer else "TYPE_NARROWED")

    def _enums(self) -> None:
        before, after = ({json_key(value) for value in node.document["enum"]} for node in
                         (self._old, self._new))  # fmt: skip
        if before != after:
            verb = "EXTENDED" if before < after else "NARROWED" if before > after else "CHANGED"
            self._add(f"ENUM_ARRAY_{verb}", "enum")

    # Objects

    def _objects(self) -> None:
        old, new = self._old, self._new
        for name in old.properties.keys() & new.properties.keys():
            if (name in old.required) != (name in new.required):
                verb = "REMOVED"
                if name in new.required:
                    has_default = new.properties[name].has_default
                    verb = "WITH_DEFAULT_ADDED" if has_default else "ADDED"
                self._add(f"REQUIRED_ATTRIBUTE_{verb}", "required", name)
        for name in dict.fromkeys([*old.properties, *new.properties]):
            with self._at("properties", name):
                if name not in new.properties:
                    self._removed(partly_open(new, name), "PROPERTY", old.properties[name])
                elif name not in old.properties:
                    self._property_added(name)
                else:
                    self._add_all(
                        self._comparison.compare(old.properties[name], new.properties[name])
                    )
        self._dependencies()
        self._additional("additionalProperties", "ADDITIONAL_PROPERTIES")
        self._unevaluated("unevaluatedProperties", "UNEVALUATED_PROPERTIES")
        self._limits("maxProperties", "minProperties")

    def _property_added(self, name: str) -> None:
        old, new = self._old, self._new
        schema = new.properties[name]
        is_required, has_default = name in new.required, schema.has_default
        need = "OPTIONAL"
        if is_required:
            need = "REQUIRED_PROPERTY_WITH_DEFAULT" if has_default else "REQUIRED"
        need = need if need.endswith("DEFAULT") else f"{need}_PROPERTY"
        if is_open(old):
            if schema.kind == "empty":
                self._add("PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL")
            else:
                self._add(f"{need}_ADDED_TO_OPEN_CONTENT_MODEL")
            return
        cover = partly_open(old, name)
        if cover is not None:
            self._covered("PROPERTY_ADDED", self._comparison.compare(cover, schema))
        self._add(f"{need}_ADDED_TO_UNOPEN_CONTENT_MODEL")

    def _removed(self, cover: Node | None, what: str, schema: Node) -> None:
        """A property or an item that the new schema does not have."""
        if is_open(self._new):
            self._add(f"{what}_REMOVED_FROM_OPEN_CONTENT_MODEL")
        elif cover is not None:
            self._covered(f"{what}_REMOVED", self._comparison.compare(schema, cover))
        elif schema.kind == "false":
            self._add(f"{what}_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL")
        else:
            self._add(f"{what}_REMOVED_FROM_CLOSED_CONTENT_MODEL")

    def _covered(self, change: str, found: list[Difference]) -> None:
        self._add_all(found)
        verb = "IS" if self._comparison.is_readable(found) else "NOT"
        self._add(f"{change}_{verb}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")

    def _dependencies(self) -> None:
        old, new = self._old, self._new
        for name in dict.fromkeys([*old.needed_with, *new.needed_with]):
            before, after = old.needed_with.get(name), new.needed_with.get(name)
            if before == after:
                continue
            if before is None or after is None:
                verb = "ADDED" if before is None else "REMOVED"
            else:
                verb = "EXTENDED" if before < after else "NARROWED" if before > after else "CHANGED"
            self._add(f"DEPENDENCY_ARRAY_{verb}", "dependencies", name)
        for name in dict.fromkeys([*old.schema_with, *new.schema_with]):
            with self._at("dependencies", name):
                if name not in new.schema_with:
                    self._add("DEPENDENCY_SCHEMA_REMOVED")
                elif name not in old.schema_with:
                    self._add("DEPENDENCY_SCHEMA_ADDED")
                else:
                    self._add_all(
                        self._comparison.compare(old.schema_with[name], new.schema_with[name])
                    )

    def _additional(self, keyword: str, name: str) -> None:
        before, after = self._old.additional, self._new.additional
        with self._at(keyword):
            if is_false(before) != is_false(after):
                self._add(f"{name}_{'ADDED' if is_false(before) else 'REMOVED'}")
            elif before is None and after is not None:
                self._add(f"{name}_NARROWED")
            elif before is not None and after is None:
                self._add(f"{name}_EXTENDED")
            else:
                self._add_all(self._comparison.compare(before, after))

    def _unevaluated(self, keyword: str, name: str) -> None:
        before, after = self._old.unevaluated, self._new.unevaluated
        with self._at(keyword):
            if is_false(before) != is_false(after):
                self._add(f"{name}_{'ADDED' if is_false(before) else 'REMOVED'}")
            elif is_anything(before) != is_anything(after):
                self._add(f"{name}_{'NARROWED' if is_anything(before) else 'EXTENDED'}")
            elif before is not None and after is not None:
                self._add_all(self._comparison.compare(before, after))

    # Arrays

    def _arrays(self) -> None:
        old, new = self._old, self._new
        with self._at("items"):
            self._add_all(self._comparison.compare(old.every_item, new.every_item))
        for index in range(max(len(old.items), len(new.items))):
            with self._at("items", str(index)):
                if index >= len(new.items):
                    self._removed(partly_open(new), "ITEM", old.items[index])
                elif index >= len(old.items):
                    self._item_added(new.items[index])
                else:
                    self._add_all(self._comparison.compare(old.items[index], new.items[index]))
        self._additional("additionalItems", "ADDITIONAL_ITEMS")
        self._unevaluated("unevaluatedItems", "UNEVALUATED_ITEMS")
        self._limits("maxItems", "minItems", "maxContains", "minContains")
        before, after = (bool(node.document.get("uniqueItems")) for node in (old, new))
        if before != after:
            self._add(f"UNIQUE_ITEMS_{'REMOVED' if before else 'ADDED'}", "uniqueItems")

    def _item_added(self, schema: Node) -> None:
        if is_open(self._old):
            is_empty = schema.kind == "empty"
            self._add(f"ITEM_{'WITH_EMPTY_SCHEMA_' if is_empty else ''}ADDED_TO_OPEN_CONTENT_MODEL")
            return
        cover = partly_open(self._old)
        if cover is not None:
            self._covered("ITEM_ADDED", self._comparison.compare(cover, schema))
        else:
            self._add("ITEM_ADDED_TO_CLOSED_CONTENT_MODEL")
