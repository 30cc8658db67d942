"""Whether a reader's Avro schema can read what a writer's schema has written.

The rules are Avro's schema resolution: types are equal or promoted (int to long, float, double;
bytes to string and back), names are equal or aliases, fields that the writer does not have need a
default, symbols that the reader does not have need the enum's default. Each way in which it cannot
has the path in the reader's schema.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

_PROMOTED: Final = {  # what a reader of this type reads besides itself
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "string": {"bytes"},
    "bytes": {"string"},
}


class Incompatibility(NamedTuple):
    kind: str  # TYPE_MISMATCH, …: the names of Avro's own library
    path: str
    description: str
    detail: str


def incompatibilities(
    reader: Any, reader_named: Mapping[str, Any], writer: Any, writer_named: Mapping[str, Any]
) -> list[Incompatibility]:
    """Nothing: the reader reads all that the writer writes. Schemas are `AvroSchema`'s."""
    return _Comparison(reader_named, writer_named).compare(reader, writer, "")


class _Comparison:
    def __init__(self, reader_named: Mapping[str, Any], writer_named: Mapping[str, Any]) -> None:
        self._reader_named = reader_named
        self._writer_named = writer_named
        # Pairs of named types; one that is being compared counts as readable meanwhile.
        self._found: dict[tuple[str, str], list[Incompatibility]] = {}

    def compare(self, reader: Any, writer: Any, path: str) -> list[Incompatibility]:
        reader_type = self._of(reader, self._reader_named)
        writer_type = self._of(writer, self._writer_named)
        if isinstance(reader_type, dict) and isinstance(writer_type, dict):
            pair = (reader_type.get("name", ""), writer_type.get("name", ""))
            if all(pair):
                if pair in self._found:
                    return self._found[pair]
                self._found[pair] = []
                self._found[pair] = self._compared(reader_type, writer_type, path)
                return self._found[pair]
        return self._compared(reader_type, writer_type, path)

    def _compared(self, reader: Any, writer: Any, path: str) -> list[Incompatibility]:
        if isinstance(writer, list):
            if isinstance(reader, list):
                return [
                    _lacking_branch(branch, f"{path}/{index}")
                    for index, branch in enumerate(writer)
                    if not self._is_read_by_any(reader, branch)
                ]
            return [found for branch in writer for found in self.compare(reader, branch, path)]
        if isinstance(reader, list):
            return [] if self._is_read_by_any(reader, writer) else [_lacking_branch(writer, path)]
        reader_kind, writer_kind = _kind(reader), _kind(writer)
        if reader_kind != writer_kind:
            if writer_kind in _PROMOTED.get(reader_kind, ()):
                return []
            return [
                Incompatibility(
                    "TYPE_MISMATCH",
                    path or "/",
                    f"The type (path '{path or '/'}') of a field in the {{new}} schema does not"
                    " match with the {old} schema",
                    f"reader type: {reader_kind.upper()} not compatible with writer type:"
                    f" {writer_kind.upper()}",
                )
            ]
        match reader_kind:
            case "array":
                return self.compare(reader["items"], writer["items"], f"{path}/items")
            case "map":
                return self.compare(reader["values"], writer["values"], f"{path}/values")
            case "fixed":
                return self._names(reader, writer, path) + self._sizes(reader, writer, path)
            case "enum":
                return self._names(reader, writer, path) + self._symbols(reader, writer, path)
            case "record":
                return self._names(reader, writer, path) + self._fields(reader, writer, path)
        return []

    def _is_read_by_any(self, reader: list[Any], writer: Any) -> bool:
        found = dict(self._found)
        for branch in reader:
            if not self.compare(branch, writer, ""):
                return True
            self._found = dict(found)  # its paths were not the ones to report
        return False

    def _names(self, reader: Any, writer: Any, path: str) -> list[Incompatibility]:
        if (
            reader["name"].rpartition(".")[2] == writer["name"].rpartition(".")[2]
            or writer["name"] in reader["aliases"]
        ):
            return []
        return [
            Incompatibility(
                "NAME_MISMATCH",
                f"{path}/name",
                f"The name of the schema has changed (path '{path}/name')",
                f"expected: {writer['name']}",
            )
        ]

    def _sizes(self, reader: Any, writer: Any, path: str) -> list[Incompatibility]:
        if reader["size"] == writer["size"]:
            return []
        return [
            Incompatibility(
                "FIXED_SIZE_MISMATCH",
                f"{path}/size",
                f"The size of FIXED type field at path '{path}/size' in the {{new}} schema does"
                " not match with the {old} schema",
                f"expected: {writer['size']}, found: {reader['size']}",
            )
        ]

    def _symbols(self, reader: Any, writer: Any, path: str) -> list[Incompatibility]:
        missing = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
        if not missing or reader["default"] in reader["symbols"]:
            return []
        symbols = f"[{', '.join(missing)}]"
        return [
            Incompatibility(
                "MISSING_ENUM_SYMBOLS",
                f"{path}/symbols",
                f"The {{new}} schema is missing enum symbols '{symbols}' at path '{path}/symbols'"
                " in the {old} schema",
                symbols,
            )
        ]

    def _fields(self, reader: Any, writer: Any, path: str) -> list[Incompatibility]:
        written = {field["name"]: field for field in writer["fields"]}
        found = []
        for index, field in enumerate(reader["fields"]):
            at = f"{path}/fields/{index}"
            source = next(
                (written[name] for name in (field["name"], *field["aliases"]) if name in written),
                None,
            )
            if source is not None:
                found += self.compare(field["type"], source["type"], f"{at}/type")
            elif not field["has_default"]:
                found.append(
                    Incompatibility(
                        "READER_FIELD_MISSING_DEFAULT_VALUE",
                        at,
                        f"The field '{field['name']}' at path '{at}' in the {{new}} schema has no"
                        " default value and is missing in the {old} schema",
                        field["name"],
                    )
                )
        return found

    @staticmethod
    def _of(schema: Any, named: Mapping[str, Any]) -> Any:
        return named.get(schema, schema) if isinstance(schema, str) else schema


def _kind(schema: Any) -> str:
    return str(schema["type"] if isinstance(schema, dict) else schema)


def _lacking_branch(writer: Any, path: str) -> Incompatibility:
    name = writer if isinstance(writer, str) else _kind(writer)
    return Incompatibility(
        "MISSING_UNION_BRANCH",
        path or "/",
        f"The {{new}} schema is missing a type inside a union field at path '{path or '/'}' in the"
        " {old} schema",
        f"reader union lacking writer type: {name.upper()}",
    )
