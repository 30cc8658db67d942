"""Protobuf schemas: a .proto file, or a serialised FileDescriptorProto in base64, and its imports.

Programs register the second form (confluent-kafka for Python does); the registry stores and returns
the first, and the second when it is asked for.
"""

import base64
import binascii
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from headwater.errors import SchemaRefused
from headwater.schemas.codes import INVALID_SCHEMA
from headwater.schemas.protobuf import known_files
from headwater.schemas.protobuf.differences import unreadable
from headwater.schemas.protobuf.parsing import parse_file
from headwater.schemas.protobuf.writing import file_text

MAIN: Final = "default"  # the name of the file itself, which its text does not say
_GOOGLE: Final = re.compile(r"google/(protobuf|type)/([a-z_]+)\.proto")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")


@dataclass(frozen=True, slots=True, eq=False)
class ProtobufSchema:
    """`file` is resolved, in `pool`, which has all that it imports."""

    text: str
    proto: FileDescriptorProto
    file: FileDescriptor = field(repr=False)
    pool: DescriptorPool = field(repr=False)
    type: str = "PROTOBUF"

    def normalized(self) -> str:
        """Imports by name, types by their full names."""
        made = FileDescriptorProto()
        self.file.CopyToProto(made)
        made.name = self.proto.name
        if not made.public_dependency and not made.weak_dependency:
            names = sorted(made.dependency)
            del made.dependency[:]
            made.dependency.extend(names)
        return file_text(made)

    def serialized(self) -> str:
        """The FileDescriptorProto, in base64."""
        made = FileDescriptorProto()
        self.file.CopyToProto(made)
        return base64.b64encode(made.SerializeToString(deterministic=True)).decode()

    def why_unreadable(self, older: "ProtobufSchema", *, is_lenient: bool = False) -> list[str]:
        return [
            f"{{errorType:'{found.kind}', description:'At path '{found.path}' the {{new}} schema"
            f" differs from the {{old}} schema: {found.kind.replace('_', ' ').lower()}'}}"
            for found in unreadable(older.file, self.file)
        ]


def parse_protobuf(text: str, references: Mapping[str, str]) -> ProtobufSchema:
    """Raises SchemaRefused. `references` are texts by the names that imports have, those that
    others need first.
    """
    proto = _proto(text, MAIN)
    files = {name: _proto(referenced, name) for name, referenced in references.items()}
    pool = DescriptorPool()
    added: set[str] = set()
    _add(pool, proto, files, added, ())
    return ProtobufSchema(file_text(proto), proto, pool.FindFileByName(proto.name), pool)


def _proto(text: str, name: str) -> FileDescriptorProto:
    found = _from_base64(text) if _BASE64.fullmatch(text) else None
    if found is None:
        return parse_file(text, name)
    found.name = name
    return found


def _from_base64(text: str) -> FileDescriptorProto | None:
    try:
        data = base64.b64decode(text, validate=False)
        found = FileDescriptorProto.FromString(data)
    except (binascii.Error, DecodeError, ValueError):
        return None
    found.ClearField("source_code_info")
    return found if found.message_type or found.enum_type or found.name else None


def _add(
    pool: DescriptorPool,
    proto: FileDescriptorProto,
    files: Mapping[str, FileDescriptorProto],
    added: set[str],
    around: tuple[str, ...],
) -> None:
    if proto.name in around:
        raise SchemaRefused(INVALID_SCHEMA, f"no Protobuf schema: {proto.name} imports itself")
    for name in proto.dependency:
        if name not in added:
            imported = files.get(name) or _known(name)
            if imported is None:
                raise SchemaRefused(
                    INVALID_SCHEMA,
                    f'no Protobuf schema: import "{name}" is none of its references',
                    hint='references are [{"name": "…", "subject": "…", "version": …}]',
                )
            _add(pool, imported, files, added, (*around, proto.name))
    added.add(proto.name)
    try:
        pool.Add(_copy(proto))
        pool.FindFileByName(proto.name)
    except Exception as error:  # of several kinds, by the implementation of the pool
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise SchemaRefused(INVALID_SCHEMA, f"no Protobuf schema: {reason}") from error


def _copy(proto: FileDescriptorProto) -> Any:
    copied = FileDescriptorProto()
    copied.CopyFrom(proto)
    return copied


def _known(name: str) -> FileDescriptorProto | None:
    """Files that every compiler has, and Confluent's own."""
    if name == "google/protobuf/descriptor.proto":
        return FileDescriptorProto.FromString(descriptor_pb2.DESCRIPTOR.serialized_pb)
    if name in known_files.TEXTS:
        return parse_file(known_files.TEXTS[name], name)
    match = _GOOGLE.fullmatch(name)
    if match is None:
        return None
    try:
        module = importlib.import_module(f"google.{match[1]}.{match[2]}_pb2")
    except ImportError:
        return None
    return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
