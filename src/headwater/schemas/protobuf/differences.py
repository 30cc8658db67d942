"""The differences of two Protobuf files that keep a reader from reading older messages.

Fields are compared by their numbers, types by the groups that share an encoding (int32, int64,
uint32, uint64, bool and enums; sint…; string and bytes; fixed…). Fields may come, go and be
renamed, enums change; messages must not disappear, a required field must not come or go, and fields
that were independent must not become alternatives (oneof).
"""

from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import (
    Descriptor,
    FieldDescriptor,
    FileDescriptor,
    OneofDescriptor,
)

_NUMBER, _SIGNED, _TEXT, _FIXED32, _FIXED64 = "number", "signed", "text", "fixed32", "fixed64"
_ENCODINGS: Final = {
    FieldDescriptor.TYPE_INT32: _NUMBER,
    FieldDescriptor.TYPE_INT64: _NUMBER,
    FieldDescriptor.TYPE_UINT32: _NUMBER,
    FieldDescriptor.TYPE_UINT64: _NUMBER,
    FieldDescriptor.TYPE_BOOL: _NUMBER,
    FieldDescriptor.TYPE_ENUM: _NUMBER,
    FieldDescriptor.TYPE_SINT32: _SIGNED,
    FieldDescriptor.TYPE_SINT64: _SIGNED,
    FieldDescriptor.TYPE_STRING: _TEXT,
    FieldDescriptor.TYPE_BYTES: _TEXT,
    FieldDescriptor.TYPE_FIXED32: _FIXED32,
    FieldDescriptor.TYPE_SFIXED32: _FIXED32,
    FieldDescriptor.TYPE_FIXED64: _FIXED64,
    FieldDescriptor.TYPE_SFIXED64: _FIXED64,
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_DOUBLE: "double",
}


class Difference(NamedTuple):
    kind: str
    path: str


def unreadable(old: FileDescriptor, new: FileDescriptor) -> list[Difference]:
    """Why a reader of the new file cannot read what was written with the old one."""
    comparison = _Comparison()
    if old.package != new.package:
        comparison.found.append(Difference("PACKAGE_CHANGED", "#/"))
    comparison.messages(old.message_types_by_name, new.message_types_by_name, "#")
    return list(dict.fromkeys(comparison.found))


class _Comparison:
    def __init__(self) -> None:
        self.found: list[Difference] = []
        self._compared: set[tuple[str, str]] = set()

    def messages(self, old: Any, new: Any, path: str) -> None:
        for name, message in old.items():
            if message.GetOptions().map_entry:
                continue
            if name not in new:
                self.found.append(Difference("MESSAGE_REMOVED", f"{path}/{name}"))
            else:
                self._message(message, new[name], f"{path}/{name}")

    def _message(self, old: Descriptor, new: Descriptor, path: str) -> bool:
        """Whether it is readable, as far as it was not compared before."""
        pair = (old.full_name, new.full_name)
        if pair in self._compared:
            return True
        self._compared.add(pair)
        before = len(self.found)
        self._oneofs(old, new, path)
        for number in sorted({*old.fields_by_number, *new.fields_by_number}):
            self._field(
                old.fields_by_number.get(number), new.fields_by_number.get(number), old, new, path
            )
        self.messages(old.nested_types_by_name, new.nested_types_by_name, path)
        return len(self.found) == before

    def _oneofs(self, old: Descriptor, new: Descriptor, path: str) -> None:
        """Fields that were independent before must not exclude each other."""
        for oneof in _stated_oneofs(new).values():
            groups, independent = set(), 0
            for field in oneof.fields:
                former = old.fields_by_number.get(field.number)
                if former is None:
                    continue  # nothing that was written has it
                former_oneof = _oneof(former)
                if former_oneof is None:
                    independent += 1
                groups.add(str(field.number) if former_oneof is None else f"={former_oneof.name}")
            if len(groups) > 1:
                kind = "MULTIPLE_FIELDS_MOVED_TO_ONEOF"
                if independent <= 1:
                    kind = "FIELD_MOVED_TO_EXISTING_ONEOF"
                self.found.append(Difference(kind, f"{path}/{oneof.name}"))

    def _field(
        self,
        old: FieldDescriptor | None,
        new: FieldDescriptor | None,
        old_message: Descriptor,
        new_message: Descriptor,
        path: str,
    ) -> None:
        if old is None and new is not None:
            if new.is_required:
                self._add("REQUIRED_FIELD_ADDED", new, path)
        elif new is None and old is not None:
            oneof = _oneof(old)
            if oneof is not None:
                is_gone = oneof.name not in _stated_oneofs(new_message) and not any(
                    member.number in new_message.fields_by_number for member in oneof.fields
                )
                if not is_gone:
                    self._add("ONEOF_FIELD_REMOVED", old, path)
            elif old.is_required:
                self._add("REQUIRED_FIELD_REMOVED", old, path)
        elif old is not None and new is not None:
            self._types(old, new, path)

    def _types(self, old: FieldDescriptor, new: FieldDescriptor, path: str) -> None:
        kind = _kind(old)
        if kind != _kind(new):
            self._add("FIELD_KIND_CHANGED", new, path)
        elif kind == "map":
            for name in ("key", "value"):
                self._types(
                    old.message_type.fields_by_name[name],
                    new.message_type.fields_by_name[name],
                    f"{path}/{_place(new)}",
                )
        elif kind == "message":
            if _local_name(old.message_type) != _local_name(new.message_type) or not self._message(
                old.message_type,
                new.message_type,
                "#/" + _local_name(new.message_type).replace(".", "/"),
            ):
                self._add("FIELD_NAMED_TYPE_CHANGED", new, path)
        elif _ENCODINGS[old.type] != _ENCODINGS[new.type]:
            self._add("FIELD_SCALAR_KIND_CHANGED", new, path)
        elif old.is_repeated != new.is_repeated and _ENCODINGS[old.type] != _TEXT:
            # Numbers that are repeated are packed; of a text the last one counts.
            self._add("FIELD_NUMERIC_LABEL_CHANGED", new, path)

    def _add(self, kind: str, field: FieldDescriptor, path: str) -> None:
        self.found.append(Difference(kind, f"{path}/{_place(field)}"))


def _place(field: FieldDescriptor) -> str:
    oneof = _oneof(field)
    return str(field.number) if oneof is None else f"{oneof.name}/{field.number}"


def _kind(field: FieldDescriptor) -> str:
    if field.message_type is None:
        return "scalar"
    return "map" if field.message_type.GetOptions().map_entry else "message"


def _oneof(field: FieldDescriptor) -> OneofDescriptor | None:
    """The one that was written; optional fields of proto3 have one that was not."""
    oneof = field.containing_oneof
    if oneof is None or (len(oneof.fields) == 1 and _is_optional(field)):
        return None
    return oneof


def _is_optional(field: FieldDescriptor) -> bool:
    oneof = field.containing_oneof
    return bool(oneof.name.lstrip("X") == f"_{field.name}" and field.has_presence)


def _stated_oneofs(message: Descriptor) -> dict[str, OneofDescriptor]:
    return {oneof.name: oneof for oneof in message.oneofs if _oneof(oneof.fields[0]) is not None}


def _local_name(message: Descriptor) -> str:
    package = message.file.package
    name: str = message.full_name
    return name.removeprefix(f"{package}.") if package else name
