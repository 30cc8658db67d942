"""The text of a .proto file into a FileDescriptorProto, as protoc would make it.

Options of descriptor.proto are set; others ("(my.option)") stay uninterpreted, for their definition
may not be there. Names of types stay as they are written: the descriptor pool resolves them.
"""

from collections.abc import Callable
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from headwater.schemas.protobuf.options import set_option
from headwater.schemas.protobuf.scalars import SCALARS
from headwater.schemas.protobuf.tokens import Tokens

_LABELS: Final = {
    "optional": FieldDescriptorProto.LABEL_OPTIONAL,
    "required": FieldDescriptorProto.LABEL_REQUIRED,
    "repeated": FieldDescriptorProto.LABEL_REPEATED,
}
_MAX_TAG: Final = (1 << 29) - 1
_MIN_ENUM, _MAX_ENUM = -(1 << 31), (1 << 31) - 1
_MAX_DEPTH: Final = 32


def parse_file(text: str, name: str) -> FileDescriptorProto:
    """Raises SchemaRefused with line and column."""
    return _Parser(text, name).file()


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self._tokens = Tokens(text)
        self._file = FileDescriptorProto(name=name)
        self._syntax = "proto2"

    def file(self) -> FileDescriptorProto:
        tokens, file = self._tokens, self._file
        while tokens.peek.kind != "end":
            if tokens.take_if(";"):
                continue
            match tokens.name():
                case "syntax":
                    self._take_syntax()
                case "edition":
                    tokens.expect("=")
                    year = tokens.text_string()
                    self._end()
                    if f"EDITION_{year}" not in descriptor_pb2.Edition.keys():  # noqa: SIM118
                        raise tokens.refused(f"edition {year}")
                    file.syntax = self._syntax = "editions"
                    file.edition = descriptor_pb2.Edition.Value(f"EDITION_{year}")
                case "import":
                    self._take_import()
                case "package":
                    file.package = tokens.full_name()
                    self._end()
                case "option":
                    self._option(file.options)
                case "message":
                    self._message(file.message_type.add(), 0)
                case "enum":
                    self._enum(file.enum_type.add())
                case "service":
                    self._service()
                case "extend":
                    self._extend(file.extension, file.message_type, 0)
                case other:
                    raise tokens.refused(f"unexpected {other!r}")
        return file

    def _end(self) -> None:
        self._tokens.expect(";")

    def _take_syntax(self) -> None:
        self._tokens.expect("=")
        syntax = self._tokens.text_string()
        if syntax not in ("proto2", "proto3"):
            raise self._tokens.refused(f"syntax {syntax!r}")
        self._end()
        self._syntax = syntax
        if syntax == "proto3":
            self._file.syntax = syntax

    def _take_import(self) -> None:
        tokens, file = self._tokens, self._file
        index = len(file.dependency)
        if tokens.take_if("public"):
            file.public_dependency.append(index)
        elif tokens.take_if("weak"):
            file.weak_dependency.append(index)
        file.dependency.append(tokens.text_string())
        self._end()

    def _option(self, options: Any) -> None:
        set_option(options, self._tokens)
        self._end()

    def _options_in_brackets(self, options: Any, take: Callable[[str], bool] | None = None) -> None:
        """`take` may handle a name itself: default and json_name are no options of descriptors."""
        tokens = self._tokens
        if not tokens.take_if("["):
            return
        while True:
            name = tokens.peek.text
            if take is None or not take(name):
                set_option(options, tokens)
            if tokens.take_if("]"):
                return
            tokens.expect(",")

    # Messages

    def _message(self, message: DescriptorProto, depth: int) -> None:
        message.name = self._tokens.name()
        self._message_body(message, depth)

    def _message_body(self, message: DescriptorProto, depth: int) -> None:
        tokens = self._tokens
        if depth > _MAX_DEPTH:
            raise tokens.refused("messages are nested too deep")
        tokens.expect("{")
        while not tokens.take_if("}"):
            if tokens.take_if(";"):
                continue
            text = tokens.peek.text
            match text:
                case "message" | "enum" | "extend" | "oneof" | "option" if self._is_keyword():
                    tokens.take()
                    if text == "message":
                        self._message(message.nested_type.add(), depth + 1)
                    elif text == "enum":
                        self._enum(message.enum_type.add())
                    elif text == "extend":
                        self._extend(message.extension, message.nested_type, depth)
                    elif text == "oneof":
                        self._oneof(message, depth)
                    else:
                        self._option(message.options)
                case "extensions" if self._is_keyword():
                    tokens.take()
                    self._extension_ranges(message)
                case "reserved" if self._is_keyword():
                    tokens.take()
                    self._reserved(message, is_enum=False)
                case _:
                    self._field(message.field.add(), message.nested_type, depth)
        self._add_synthetic_oneofs(message)

    def _is_keyword(self) -> bool:
        """Whether the next token is one here, and not the type of a field, such as a message that
        has the name `message`.
        """
        tokens = self._tokens
        word, following = tokens.peek.text, tokens.ahead(1)
        if word == "reserved":
            return (
                following.kind in ("number", "string")
                or following.text == "-"
                or (tokens.ahead(2).text in (";", ","))
            )
        if word == "extensions":
            return following.kind == "number"
        if word == "option":
            return following.text == "(" or (
                tokens.ahead(2).text in ("=", ".")
                and (tokens.ahead(3).kind != "number" or tokens.ahead(2).text == ".")
            )
        return tokens.ahead(2).text == "{" or word == "extend"

    def _field(
        self, field: FieldDescriptorProto, nested: Any, depth: int, *, has_label: bool = True
    ) -> None:
        tokens = self._tokens
        field.label = FieldDescriptorProto.LABEL_OPTIONAL
        if has_label and tokens.is_next(*_LABELS) and tokens.ahead(1).text != "=":
            label = tokens.take().text
            field.label = _LABELS[label]
            field.proto3_optional = label == "optional" and self._syntax == "proto3"
            if not field.proto3_optional:
                field.ClearField("proto3_optional")
            if label == "required" and self._syntax == "proto3":
                raise tokens.refused("a proto3 field is not required")
        elif has_label and self._syntax == "proto2" and not tokens.is_next("map"):
            raise tokens.refused("a field of proto2 is optional, required or repeated")
        if tokens.is_next("group") and tokens.ahead(2).text == "=":
            self._group(field, nested, depth)
            return
        if tokens.is_next("map") and tokens.ahead(1).text == "<":
            self._map(field, nested)
        else:
            self._set_type(field, tokens.full_name())
            field.name = tokens.name()
        tokens.expect("=")
        field.number = tokens.integer(1, _MAX_TAG)
        self._field_options(field)
        self._end()

    @staticmethod
    def _set_type(field: FieldDescriptorProto, name: str) -> None:
        if name in SCALARS:
            field.type = SCALARS[name]
        else:
            field.type_name = name

    def _field_options(self, field: FieldDescriptorProto) -> None:
        tokens = self._tokens

        def take(name: str) -> bool:
            if name not in ("default", "json_name") or tokens.ahead(1).text != "=":
                return False
            tokens.take()
            tokens.expect("=")
            if name == "json_name":
                field.json_name = tokens.text_string()
            elif field.type == FieldDescriptorProto.TYPE_BYTES:
                field.default_value = "".join(_byte_text(byte) for byte in tokens.string())
            elif tokens.peek.kind == "string":
                field.default_value = tokens.text_string()
            else:
                sign = "-" if tokens.take_if("-") else ""
                field.default_value = sign + tokens.take().text
            return True

        self._options_in_brackets(field.options, take)

    def _group(self, field: FieldDescriptorProto, nested: Any, depth: int) -> None:
        tokens = self._tokens
        tokens.take()
        name = tokens.name()
        tokens.expect("=")
        field.name, field.number = name.lower(), tokens.integer(1, _MAX_TAG)
        field.type, field.type_name = FieldDescriptorProto.TYPE_GROUP, name
        self._field_options(field)
        message = nested.add(name=name)
        self._message_body(message, depth + 1)

    def _map(self, field: FieldDescriptorProto, nested: Any) -> None:
        tokens = self._tokens
        tokens.take()
        tokens.expect("<")
        key = tokens.name()
        tokens.expect(",")
        value = tokens.full_name()
        tokens.expect(">")
        field.name = tokens.name()
        camel = "".join(part[:1].upper() + part[1:] for part in field.name.split("_"))
        entry = nested.add(name=f"{camel}Entry")
        entry.options.map_entry = True
        for number, (name, kind) in enumerate((("key", key), ("value", value)), 1):
            member = entry.field.add(name=name, number=number)
            member.label = FieldDescriptorProto.LABEL_OPTIONAL
            self._set_type(member, kind)
        field.label = FieldDescriptorProto.LABEL_REPEATED
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, entry.name

    def _oneof(self, message: DescriptorProto, depth: int) -> None:
        tokens = self._tokens
        index = len(message.oneof_decl)
        oneof = message.oneof_decl.add(name=tokens.name())
        tokens.expect("{")
        while not tokens.take_if("}"):
            if tokens.take_if(";"):
                continue
            if tokens.is_next("option") and self._is_keyword():
                tokens.take()
                self._option(oneof.options)
                continue
            field = message.field.add(oneof_index=index)
            self._field(field, message.nested_type, depth, has_label=False)

    @staticmethod
    def _add_synthetic_oneofs(message: DescriptorProto) -> None:
        """An optional field of proto3 is a oneof of its own; they stand behind the others."""
        names = {field.name for field in message.field} | {
            oneof.name for oneof in message.oneof_decl
        }
        for field in message.field:
            if field.proto3_optional:
                name = f"_{field.name}"
                while name in names:
                    name = f"X{name}"
                names.add(name)
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=name)

    def _extend(self, extensions: Any, nested: Any, depth: int) -> None:
        tokens = self._tokens
        extendee = tokens.full_name()
        tokens.expect("{")
        while not tokens.take_if("}"):
            if not tokens.take_if(";"):
                field = extensions.add(extendee=extendee)
                self._field(field, nested, depth)
                if field.proto3_optional:  # has no oneof outside of a message
                    field.ClearField("oneof_index")

    def _ranges(self, first: int, last: int) -> list[tuple[int, int]]:
        """Of "2, 5 to 7, 9 to max", both ends included."""
        tokens, found = self._tokens, []
        while True:
            start = tokens.integer(first, last)
            end = start
            if tokens.take_if("to"):
                end = last if tokens.take_if("max") else tokens.integer(start, last)
            found.append((start, end))
            if not tokens.take_if(","):
                return found

    def _extension_ranges(self, message: DescriptorProto) -> None:
        ranges = self._ranges(1, _MAX_TAG)
        options = descriptor_pb2.ExtensionRangeOptions()
        self._options_in_brackets(options)
        for start, end in ranges:
            made = message.extension_range.add(start=start, end=end + 1)
            if options.ListFields():
                made.options.CopyFrom(options)
        self._end()

    def _reserved(self, message: Any, *, is_enum: bool) -> None:
        tokens = self._tokens
        if tokens.peek.kind in ("string", "name"):
            while True:
                is_name = tokens.peek.kind == "name"
                message.reserved_name.append(tokens.name() if is_name else tokens.text_string())
                if not tokens.take_if(","):
                    break
        elif is_enum:
            for start, end in self._ranges(_MIN_ENUM, _MAX_ENUM):
                message.reserved_range.add(start=start, end=end)
        else:
            for start, end in self._ranges(1, _MAX_TAG):
                message.reserved_range.add(start=start, end=end + 1)
        self._end()

    # Enums and services

    def _enum(self, enum: EnumDescriptorProto) -> None:
        tokens = self._tokens
        enum.name = tokens.name()
        tokens.expect("{")
        while not tokens.take_if("}"):
            if tokens.take_if(";"):
                continue
            if tokens.is_next("option") and tokens.ahead(1).text != "=":
                tokens.take()
                self._option(enum.options)
            elif tokens.is_next("reserved") and tokens.ahead(1).text != "=":
                tokens.take()
                self._reserved(enum, is_enum=True)
            else:
                value = enum.value.add(name=tokens.name())
                tokens.expect("=")
                value.number = tokens.integer(_MIN_ENUM, _MAX_ENUM)
                self._options_in_brackets(value.options)
                if not value.options.ListFields():
                    value.ClearField("options")
                self._end()

    def _service(self) -> None:
        tokens = self._tokens
        service = self._file.service.add(name=tokens.name())
        tokens.expect("{")
        while not tokens.take_if("}"):
            if tokens.take_if(";"):
                continue
            if tokens.take_if("option"):
                self._option(service.options)
                continue
            tokens.expect("rpc")
            method = service.method.add(name=tokens.name())
            method.input_type, is_streaming = self._stream()
            if is_streaming:
                method.client_streaming = True
            tokens.expect("returns")
            method.output_type, is_streaming = self._stream()
            if is_streaming:
                method.server_streaming = True
            if tokens.take_if(";"):
                continue
            tokens.expect("{")
            while not tokens.take_if("}"):
                if not tokens.take_if(";"):
                    tokens.expect("option")
                    self._option(method.options)

    def _stream(self) -> tuple[str, bool]:
        tokens = self._tokens
        tokens.expect("(")
        is_stream = tokens.ahead(1).text != ")" and tokens.take_if("stream")
        name = tokens.full_name()
        tokens.expect(")")
        return name, is_stream


def _byte_text(byte: int) -> str:
    """As descriptors have the default of a bytes field: C escapes."""
    if 32 <= byte < 127 and byte not in b"\"'\\":
        return chr(byte)
    return f"\\{byte:03o}"
