"""Protobuf schemas: text to descriptors and back, and compatibility."""

import pytest
from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import count

from headwater.errors import SchemaRefused
from headwater.schemas.compatibility import Older, incompatibilities
from headwater.schemas.protobuf.parsing import parse_file
from headwater.schemas.protobuf.schema import parse_protobuf
from headwater.schemas.protobuf.writing import file_text

MODULES = [
    any_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2,
    source_context_pb2, struct_pb2, timestamp_pb2, type_pb2, wrappers_pb2,
]  # fmt: skip


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.DESCRIPTOR.name)
def test_protocs_own_descriptors_survive_the_text(module):
    """What protoc made of a file is what we make of the text that we write for it."""
    made = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    for message in made.message_type:
        _clear_json_names(message)
    again = parse_file(file_text(made), made.name)
    assert _typeless(again) == _typeless(made)


def _clear_json_names(message):
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        _clear_json_names(nested)


def _typeless(file):
    """Only the pool finds out whether a name is a message or an enum; and the order of nested
    messages, of which maps make some, is that of the text.
    """
    made = FileDescriptorProto()
    made.CopyFrom(file)

    def clear(message):
        for field in [*message.field, *message.extension]:
            if field.type_name:
                field.ClearField("type")
                field.type_name = field.type_name.rpartition(".")[2]
        nested = sorted(message.nested_type, key=lambda nested_type: nested_type.name)
        del message.nested_type[:]
        message.nested_type.extend(nested)
        for nested_type in message.nested_type:
            clear(nested_type)

    for message in made.message_type:
        clear(message)
    return made


EVERYTHING = """
// a comment
syntax = "proto3"; /* another */
package shop.v1;
import "google/protobuf/timestamp.proto";
option java_package = "org.example";
option (my.option) = { a: 1 b: "}" };
message Order {
  option deprecated = true;
  reserved 9, 20 to 30, 1000 to max; reserved "old", 'older';
  int64 id = 1 [deprecated = true, (my.field) = "x", json_name = "number"];
  optional string note = 2;
  repeated Line lines = 3; map<string, Line> by_name = 4;
  oneof payment { string card = 5; bool cash = 6; }
  google.protobuf.Timestamp at = 7;
  State state = 8;
  message Line { string sku = 1; sfixed64 cents = 2; }
  enum State { option allow_alias = true; NEW = 0; FRESH = 0; SENT = -1; reserved 5 to 7; }
}
service Orders { rpc Get (Order) returns (stream Order) { option deprecated = true; } }
"""

PROTO2 = """
syntax = "proto2";
message A {
  required int32 a = 1; optional double b = 2 [default = -1.5]; optional string c = 3
  [default = "q\\"\\n"]; optional bytes d = 4 [default = "\\x00a"];
  extensions 100 to 199, 500 to max;
  repeated group G = 5 { optional bool x = 1 [default = true]; }
  extend A { optional int32 more = 100; }
}
extend A { repeated string texts = 101; }
"""


@pytest.mark.parametrize("text", [EVERYTHING, PROTO2])
def test_the_canonical_text_is_stable_and_means_the_same(text):
    parsed = parse_protobuf(text, {})
    again = parse_protobuf(parsed.text, {})
    assert again.text == parsed.text
    assert again.proto == parsed.proto
    from_program = parse_protobuf(parsed.serialized(), {})
    assert from_program.normalized() == parsed.normalized()
    assert parse_protobuf(parsed.normalized(), {}).normalized() == parsed.normalized()


def test_white_space_and_comments_make_no_other_schema():
    first = parse_protobuf('syntax = "proto3"; message A { int32 a = 1; }', {})
    assert parse_protobuf("syntax='proto3';\n//\nmessage A{int32\na=1;;}", {}).text == first.text


INVALID = {
    "": "message A { int32 a = 1; }",  # proto2 has labels
    "line 1 column 26": 'syntax = "proto3"; class A {}',
    "line 2 column 15": 'syntax = "proto3";\nmessage A { a = 1; }',
    "couldn't resolve name": 'syntax = "proto3"; message A { Nothing a = 1; }',
    "is none of its references": 'syntax = "proto3"; import "x.proto";',
    "found 'the end'": 'syntax = "proto3"; message A {',
    "nested too deep": 'syntax = "proto3";' + "message A {" * 200,
    "between 1 and": 'syntax = "proto3"; message A { int32 a = 0; }',
    "unexpected": 'syntax = "proto3"; message A { int32 a = 1; } §',
    "there is no option": 'syntax = "proto3"; option nothing = 1;',
    "syntax 'proto9'": 'syntax = "proto9";',
}


@pytest.mark.parametrize("reason", INVALID)
def test_what_is_no_schema_is_refused_with_its_place(reason):
    with pytest.raises(SchemaRefused) as caught:
        parse_protobuf(INVALID[reason], {})
    assert reason in str(caught.value)
    assert caught.value.code == 42201


def test_a_field_number_that_is_there_twice_is_refused():
    with pytest.raises(SchemaRefused):
        parse_protobuf('syntax = "proto3"; message A { int32 a = 1; int32 b = 1; }', {})


def test_imports_are_references():
    part = 'syntax = "proto3"; package p; message Part { string sku = 1; }'
    whole = 'syntax = "proto3"; import "part.proto"; message Whole { p.Part part = 1; }'
    assert parse_protobuf(whole, {"part.proto": part}).file.message_types_by_name["Whole"]
    again = {"part.proto": 'syntax = "proto3"; import "default"; message X {}'}
    with pytest.raises(SchemaRefused):
        parse_protobuf(whole, again)


def proto(body, head=""):
    return parse_protobuf(f'syntax = "proto3"; {head} message M {{ {body} }}', {})


READABLE = [
    ("int32 a = 1;", "int32 a = 1; string b = 2;"),
    ("int32 a = 1; string b = 2;", "int32 a = 1;"),
    ("int32 a = 1;", "int32 renamed = 1;"),
    ("int32 a = 1;", "int64 a = 1;"),
    ("bool a = 1;", "E a = 1; enum E { X = 0; }"),
    ("string a = 1;", "bytes a = 1;"),
    ("string a = 1;", "repeated string a = 1;"),
    ("int32 a = 1;", "oneof o { int32 a = 1; string b = 2; }"),
    ("oneof o { int32 a = 1; string b = 2; }", "int32 a = 1; string b = 2;"),
    ("oneof o { int32 a = 1; }", ""),
    ("E e = 1; enum E { X = 0; Y = 1; }", "E e = 1; enum E { Z = 0; }"),
    ("map<string, int32> m = 1;", "map<string, int64> m = 1;"),
    ("M m = 1;", "M m = 1; int32 b = 2;"),
    ("optional int32 a = 1;", "int32 a = 1;"),
]
UNREADABLE = [
    ("int32 a = 1;", "sint32 a = 1;", "FIELD_SCALAR_KIND_CHANGED", "#/M/1"),
    ("int32 a = 1;", "string a = 1;", "FIELD_SCALAR_KIND_CHANGED", "#/M/1"),
    ("int32 a = 1;", "repeated int32 a = 1;", "FIELD_NUMERIC_LABEL_CHANGED", "#/M/1"),
    ("int32 a = 1;", "M a = 1;", "FIELD_KIND_CHANGED", "#/M/1"),
    ("message N {} N n = 1;", "message O {} O n = 1;", "MESSAGE_REMOVED", "#/M/N"),
    ("message N { int32 a = 1; } N n = 1;", "message N { string a = 1; } N n = 1;",
     "FIELD_SCALAR_KIND_CHANGED", "#/M/N/1"),
    ("int32 a = 1; int32 b = 2;", "oneof o { int32 a = 1; int32 b = 2; }",
     "MULTIPLE_FIELDS_MOVED_TO_ONEOF", "#/M/o"),
    ("oneof o { int32 a = 1; } int32 b = 2;", "oneof o { int32 a = 1; int32 b = 2; }",
     "FIELD_MOVED_TO_EXISTING_ONEOF", "#/M/o"),
    ("oneof o { int32 a = 1; int32 b = 2; }", "oneof o { int32 a = 1; }",
     "ONEOF_FIELD_REMOVED", "#/M/o/2"),
    ("map<string, int32> m = 1;", "map<string, string> m = 1;",
     "FIELD_SCALAR_KIND_CHANGED", "#/M/1/2"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), READABLE)
def test_readable(old, new):
    assert incompatibilities(proto(new), [Older(1, proto(old))], "BACKWARD") == []


@pytest.mark.parametrize(("old", "new", "kind", "path"), UNREADABLE)
def test_unreadable_with_what_and_where(old, new, kind, path):
    messages = incompatibilities(proto(new), [Older(1, proto(old))], "BACKWARD")
    assert any(kind in message and f"'{path}'" in message for message in messages), messages


def test_another_package_is_unreadable():
    old, new = proto("", "package a;"), proto("", "package b;")
    assert "PACKAGE_CHANGED" in incompatibilities(new, [Older(1, old)], "BACKWARD")[0]


def test_required_fields_must_not_come_or_go():
    old = parse_protobuf("message M { required int32 a = 1; }", {})
    new = parse_protobuf("message M { required int32 b = 2; }", {})
    text = " ".join(incompatibilities(new, [Older(1, old)], "BACKWARD"))
    assert "REQUIRED_FIELD_REMOVED" in text
    assert "REQUIRED_FIELD_ADDED" in text


WORDS = [
    "syntax", "=", '"proto3"', ";", "message", "A", "B", "{", "}", "(", ")", "[", "]", "<", ">",
    ",", ".", ":", "-", "int32", "map", "repeated", "1", "2", "x", "enum", "oneof", "option",
    "import", "package", "extend", "service", "rpc", "returns", "stream", "to", "max", "reserved",
    "extensions", "group", "optional", "default", '"', "'", "/*", "*/", "//",
]  # fmt: skip


@settings(max_examples=count(300, 5000), deadline=None)
@given(
    st.one_of(
        st.text(max_size=200),
        st.lists(
            st.sampled_from(WORDS),
            max_size=60,
        ).map(" ".join),
    )
)
def test_any_text_is_a_schema_or_refused(text):
    try:
        parsed = parse_protobuf(text, {})
    except SchemaRefused:
        return
    assert parse_protobuf(parsed.text, {}).text == parsed.text
