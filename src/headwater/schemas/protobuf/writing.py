"""A FileDescriptorProto as the text of a .proto file: the canonical form.

Comments and the order of options are not part of it. Names of types stay as the descriptor has
them: as they were written, or with a leading dot where a program made it.
"""

from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from headwater.schemas.protobuf.options import quoted, stated
from headwater.schemas.protobuf.scalars import SCALARS

_NAMES: Final = {number: name for name, number in SCALARS.items()}
_MAX_TAG: Final = (1 << 29) - 1
_MAX_ENUM: Final = (1 << 31) - 1


def file_text(file: FileDescriptorProto) -> str:
    return "\n".join(_file(file)) + "\n"


def _file(file: FileDescriptorProto) -> Iterator[str]:
    if file.syntax == "editions":
        year = descriptor_pb2.Edition.Name(file.edition).removeprefix("EDITION_")
        yield f'edition = "{year}";'
    else:
        yield f'syntax = "{file.syntax or "proto2"}";'
    if file.package:
        yield f"package {file.package};"
    if file.dependency:
        yield ""
    for index, name in enumerate(file.dependency):
        kind = "public " if index in file.public_dependency else ""
        kind = "weak " if index in file.weak_dependency else kind
        yield f"import {kind}{quoted(name.encode())};"
    options = list(_options(file.options))
    if options:
        yield ""
        yield from options
    for message in file.message_type:
        yield ""
        yield from _message(message, file.syntax)
    for enum in file.enum_type:
        yield ""
        yield from _enum(enum)
    yield from _extensions(file.extension, file.message_type, file.syntax)
    for service in file.service:
        yield ""
        yield f"service {service.name} {{"
        yield from _indented(_options(service.options))
        for method in service.method:
            request = ("stream " if method.client_streaming else "") + method.input_type
            response = ("stream " if method.server_streaming else "") + method.output_type
            head = f"  rpc {method.name} ({request}) returns ({response})"
            inside = list(_options(method.options))
            if inside:
                yield head + " {"
                yield from _indented(_indented(inside))
                yield "  }"
            else:
                yield head + ";"
        yield "}"


def _indented(lines: Any) -> Iterator[str]:
    for line in lines:
        yield f"  {line}" if line else line


def _options(options: Any) -> Iterator[str]:
    for name, value in sorted(stated(options), key=itemgetter(0)):
        yield f"option {name} = {value};"


def _bracketed(options: Any, *more: str) -> str:
    parts = [
        *more,
        *(f"{name} = {value}" for name, value in sorted(stated(options), key=itemgetter(0))),
    ]
    return f" [{', '.join(parts)}]" if parts else ""


def _message(message: DescriptorProto, syntax: str) -> Iterator[str]:
    yield f"message {message.name} {{"
    yield from _indented(_members(message, syntax))
    yield "}"


def _members(message: DescriptorProto, syntax: str) -> Iterator[str]:
    yield from _options(message.options)
    yield from _reserved(message, _MAX_TAG, 1)
    inline = {
        field.type_name.rpartition(".")[2]
        for field in [*message.field, *message.extension]
        if field.type == FieldDescriptorProto.TYPE_GROUP
    }
    maps = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    written: set[int] = set()
    for field in message.field:
        has_oneof = field.HasField("oneof_index") and not field.proto3_optional
        if not has_oneof:
            yield from _field(field, message.nested_type, maps, syntax)
        elif field.oneof_index not in written:
            written.add(field.oneof_index)
            oneof = message.oneof_decl[field.oneof_index]
            yield f"oneof {oneof.name} {{"
            yield from _indented(_options(oneof.options))
            for member in message.field:
                if member.HasField("oneof_index") and member.oneof_index == field.oneof_index:
                    lines = _field(member, message.nested_type, maps, syntax, has_label=False)
                    yield from _indented(lines)
            yield "}"
    for extension_range in message.extension_range:
        span = _span(extension_range.start, extension_range.end - 1, _MAX_TAG)
        yield f"extensions {span}{_bracketed(extension_range.options)};"
    yield from _extensions(message.extension, message.nested_type, syntax)
    for nested in message.nested_type:
        if nested.name not in maps and nested.name not in inline:
            yield ""
            yield from _message(nested, syntax)
    for enum in message.enum_type:
        yield ""
        yield from _enum(enum)


def _field(
    field: FieldDescriptorProto,
    nested: Any,
    maps: dict[str, DescriptorProto],
    syntax: str,
    *,
    has_label: bool = True,
) -> Iterator[str]:
    entry = maps.get(field.type_name.rpartition(".")[2])
    label = ""
    if has_label and entry is None:
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            label = "repeated "
        elif field.label == FieldDescriptorProto.LABEL_REQUIRED:
            label = "required "
        elif field.proto3_optional or syntax in ("", "proto2"):
            label = "optional "
    more = []
    if field.HasField("default_value"):
        more.append(f"default = {_default(field)}")
    if field.HasField("json_name") and field.json_name != _json_name(field.name):
        more.append(f"json_name = {quoted(field.json_name.encode())}")
    tail = f" = {field.number}{_bracketed(field.options, *more)}"
    if field.type == FieldDescriptorProto.TYPE_GROUP:
        name = field.type_name.rpartition(".")[2]
        yield f"{label}group {name}{tail} {{"
        for message in nested:
            if message.name == name:
                yield from _indented(_members(message, syntax))
        yield "}"
        return
    kind = _type(field)
    if entry is not None:
        kind = f"map<{_type(entry.field[0])}, {_type(entry.field[1])}>"
    yield f"{label}{kind} {field.name}{tail};"


def _type(field: FieldDescriptorProto) -> str:
    return str(field.type_name or _NAMES[field.type])


def _default(field: FieldDescriptorProto) -> str:
    if field.type == FieldDescriptorProto.TYPE_STRING:
        return quoted(field.default_value.encode())
    if field.type == FieldDescriptorProto.TYPE_BYTES:
        return f'"{field.default_value}"'  # it has C escapes already
    return str(field.default_value)


def _json_name(name: str) -> str:
    """What protoc sets for a field that does not say it."""
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def _extensions(extensions: Any, nested: Any, syntax: str) -> Iterator[str]:
    for extendee in dict.fromkeys(extension.extendee for extension in extensions):
        yield ""
        yield f"extend {extendee} {{"
        for extension in extensions:
            if extension.extendee == extendee:
                yield from _indented(_field(extension, nested, {}, syntax))
        yield "}"


def _reserved(message: Any, last: int, beyond: int) -> Iterator[str]:
    """`beyond`: 1 if the end of a range is not part of it."""
    spans = [_span(span.start, span.end - beyond, last) for span in message.reserved_range]
    if spans:
        yield f"reserved {', '.join(spans)};"
    if message.reserved_name:
        yield f"reserved {', '.join(quoted(name.encode()) for name in message.reserved_name)};"


def _span(start: int, end: int, last: int) -> str:
    if start == end:
        return str(start)
    return f"{start} to {'max' if end == last else end}"


def _enum(enum: EnumDescriptorProto) -> Iterator[str]:
    yield f"enum {enum.name} {{"
    yield from _indented(_options(enum.options))
    yield from _indented(_reserved(enum, _MAX_ENUM, 0))
    for value in enum.value:
        yield f"  {value.name} = {value.number}{_bracketed(value.options)};"
    yield "}"
