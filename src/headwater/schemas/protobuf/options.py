"""Options of a .proto file: those of descriptor.proto by name, others uninterpreted."""

from typing import Any, Final

from google.protobuf import descriptor_pb2, text_format
from google.protobuf.descriptor import FieldDescriptor

from headwater.schemas.protobuf.tokens import Tokens, parse_integer

_INTEGERS: Final = frozenset(
    {
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_UINT64,
    }
)
_FLOATS: Final = frozenset({FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE})


def set_option(options: Any, tokens: Tokens) -> None:
    """Takes `name = value`. Raises SchemaRefused for a name or a value that cannot be."""
    at = tokens.peek.at
    parts: list[tuple[str, bool]] = []  # a name, and whether it is an extension's
    while True:
        if tokens.take_if("("):
            parts.append((tokens.full_name(), True))
            tokens.expect(")")
        else:
            parts.append((tokens.name(), False))
        if not tokens.take_if("."):
            break
    tokens.expect("=")
    if any(is_extension for _, is_extension in parts):
        _add_uninterpreted(options, parts, tokens)
        return
    target = options
    for name, _ in parts[:-1]:
        field = target.DESCRIPTOR.fields_by_name.get(name)
        if field is None or field.message_type is None or field.is_repeated:
            raise tokens.refused(f"there is no option {name}", at)
        target = getattr(target, name)
    name = parts[-1][0]
    field = target.DESCRIPTOR.fields_by_name.get(name)
    if field is None or name == "uninterpreted_option":
        raise tokens.refused(f"there is no option {name}", at)
    try:
        if field.message_type is not None:
            tokens.expect("{")
            inside = getattr(target, name)
            text_format.Merge(tokens.aggregate(), inside.add() if field.is_repeated else inside)
            return
        value = _value(field, tokens)
        if field.is_repeated:
            getattr(target, name).append(value)
        else:
            setattr(target, name, value)
    except (ValueError, TypeError, text_format.ParseError) as error:
        raise tokens.refused(f"option {name}: {error}", at) from None


def _value(field: FieldDescriptor, tokens: Tokens) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        raw = tokens.string()
        return raw if field.type == FieldDescriptor.TYPE_BYTES else raw.decode()
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        word = tokens.name()
        if word not in ("true", "false"):
            raise ValueError(f"true or false, not {word}")
        return word == "true"
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        word = tokens.name()
        if word not in field.enum_type.values_by_name:
            raise ValueError(f"there is no {word}")
        return field.enum_type.values_by_name[word].number
    sign = -1 if tokens.take_if("-") else 1
    word = tokens.take().text
    return sign * (float(word) if kind in _FLOATS else parse_integer(word))


def _add_uninterpreted(options: Any, parts: list[tuple[str, bool]], tokens: Tokens) -> None:
    made = options.uninterpreted_option.add()
    for name, is_extension in parts:
        made.name.add(name_part=name, is_extension=is_extension)
    if tokens.take_if("{"):
        made.aggregate_value = tokens.aggregate()
    elif tokens.peek.kind == "string":
        made.string_value = tokens.string()
    elif tokens.peek.kind == "name":
        made.identifier_value = tokens.take().text
    else:
        sign = "-" if tokens.take_if("-") else ""
        word = tokens.take().text
        try:
            number = parse_integer(word)
            if sign:
                made.negative_int_value = -number
            else:
                made.positive_int_value = number
        except ValueError:
            try:
                made.double_value = float(sign + word)
            except ValueError:
                raise tokens.refused(f"expected a value, found {word!r}") from None


def stated(options: Any) -> list[tuple[str, str]]:
    """Names and values of all that are set, as they stand in a .proto file."""
    found: list[tuple[str, str]] = []
    for field, value in options.ListFields():
        if field.name in ("uninterpreted_option", "map_entry"):
            continue
        if field.is_extension:
            found.append((f"({field.full_name})", _written(field, value)))
        elif field.message_type is not None and not field.is_repeated:
            found += [(f"{field.name}.{name}", text) for name, text in stated(value)]
        elif field.is_repeated:
            found += [(field.name, _written(field, item)) for item in value]
        else:
            found.append((field.name, _written(field, value)))
    for option in getattr(options, "uninterpreted_option", ()):
        name = ".".join(
            f"({part.name_part})" if part.is_extension else part.name_part for part in option.name
        )
        found.append((name, _uninterpreted_text(option)))
    return found


def _written(field: FieldDescriptor, value: Any) -> str:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return "{ " + " ".join(f"{name}: {text}" for name, text in stated(value)) + " }"
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        found = field.enum_type.values_by_number.get(value)
        return str(value if found is None else found.name)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | bytes):
        return quoted(value.encode() if isinstance(value, str) else value)
    return str(value)


def _uninterpreted_text(option: descriptor_pb2.UninterpretedOption) -> str:
    if option.HasField("aggregate_value"):
        return f"{{ {option.aggregate_value} }}"
    if option.HasField("string_value"):
        return quoted(option.string_value)
    if option.HasField("identifier_value"):
        return str(option.identifier_value)
    for name in ("positive_int_value", "negative_int_value", "double_value"):
        if option.HasField(name):
            return repr(getattr(option, name))
    return "{ }"


def quoted(data: bytes) -> str:
    """A string literal."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return '"' + "".join(f"\\x{byte:02x}" for byte in data) + '"'
    made = text.replace("\\", "\\\\").replace('"', '\\"')
    made = made.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return (
        '"'
        + "".join(
            sign if sign.isprintable() else "".join(f"\\x{byte:02x}" for byte in sign.encode())
            for sign in made
        )
        + '"'
    )
