"""Writes src/headwater/protocol/messages/ from the message schemas inside Kafka's own jars.

    python tools/generate_messages.py JAR [JAR ...]

The jars are kafka-clients and the coordinators' (see bench/kafka/pom.xml). One module per
API; `data` messages (keys and values of internal topics) go into `internal.py`.
"""

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "src/headwater/protocol/messages"
APIS = """
Produce Fetch ListOffsets Metadata OffsetCommit OffsetFetch FindCoordinator JoinGroup Heartbeat
LeaveGroup SyncGroup DescribeGroups ListGroups ApiVersions CreateTopics DeleteTopics DeleteRecords
InitProducerId OffsetForLeaderEpoch DescribeConfigs AlterConfigs DescribeLogDirs CreatePartitions
DeleteGroups ElectLeaders IncrementalAlterConfigs OffsetDelete DescribeCluster
ConsumerGroupHeartbeat ConsumerGroupDescribe ListConfigResources DescribeTopicPartitions
AddPartitionsToTxn AddOffsetsToTxn EndTxn WriteTxnMarkers TxnOffsetCommit
DescribeProducers DescribeTransactions ListTransactions
SaslHandshake SaslAuthenticate DescribeAcls CreateAcls DeleteAcls
DescribeUserScramCredentials AlterUserScramCredentials DescribeClientQuotas AlterClientQuotas
ShareGroupHeartbeat ShareGroupDescribe ShareFetch ShareAcknowledge
DescribeShareGroupOffsets AlterShareGroupOffsets DeleteShareGroupOffsets
""".split()
INTERNAL = """
OffsetCommitKey OffsetCommitValue GroupMetadataKey GroupMetadataValue
ConsumerGroupMetadataKey ConsumerGroupMetadataValue
ConsumerGroupMemberMetadataKey ConsumerGroupMemberMetadataValue
ConsumerGroupTargetAssignmentMetadataKey ConsumerGroupTargetAssignmentMetadataValue
ConsumerGroupTargetAssignmentMemberKey ConsumerGroupTargetAssignmentMemberValue
ConsumerGroupCurrentMemberAssignmentKey ConsumerGroupCurrentMemberAssignmentValue
ConsumerGroupRegularExpressionKey ConsumerGroupRegularExpressionValue
ConsumerProtocolSubscription ConsumerProtocolAssignment
TransactionLogKey TransactionLogValue EndTxnMarker
ShareGroupMetadataKey ShareGroupMetadataValue
ShareGroupMemberMetadataKey ShareGroupMemberMetadataValue
ShareGroupTargetAssignmentMetadataKey ShareGroupTargetAssignmentMetadataValue
ShareGroupTargetAssignmentMemberKey ShareGroupTargetAssignmentMemberValue
ShareGroupCurrentMemberAssignmentKey ShareGroupCurrentMemberAssignmentValue
ShareGroupStatePartitionMetadataKey ShareGroupStatePartitionMetadataValue
ShareSnapshotKey ShareSnapshotValue ShareUpdateKey ShareUpdateValue
""".split()
# What Kafka does not tell. Other clients skip tagged fields that they do not know (KIP-482); the
# numbers are far from those that Kafka gives out.
EXTENSIONS: dict[str, list[dict[str, Any]]] = {
    "DescribeShareGroupOffsetsResponsePartition": [
        {"name": "InFlight", "type": "int64", "taggedVersions": "0+", "tag": 10000, "default": -1},
        {
            "name": "OldestLockAgeMs",
            "type": "int64",
            "taggedVersions": "0+",
            "tag": 10001,
            "default": -1,
        },
    ],
}
PRIMITIVES = {
    "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64", "uint16": "uint16",
    "uint32": "uint32", "float64": "float64", "bool": "boolean", "string": "string",
    "uuid": "uuid", "bytes": "binary", "records": "binary",
}  # fmt: skip
ZEROS = {"string": '""', "uuid": "NIL_UUID", "binary": 'b""', "boolean": "False", "float64": "0.0"}
LAST = 32767


def snake(name: str) -> str:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    return {"api_key": "key"}.get(name, name)  # Message.api_key is the message's own


def span(text: str | None) -> tuple[int, int]:
    if text in (None, "none"):
        return LAST, -1
    if text.endswith("+"):
        return int(text[:-1]), LAST
    first, _, last = text.partition("-")
    return int(first), int(last or first)


class Module:
    def __init__(self) -> None:
        self.classes: dict[str, str] = {}
        self.names: set[str] = set()

    def add(self, name: str, fields: list[dict[str, Any]], extra: str, about: str, floor: int,
            ceiling: int, renamed: dict[str, str]) -> str:  # fmt: skip
        lines = []
        for field in [*fields, *EXTENSIONS.get(name, [])]:
            first, last = span(field.get("versions", "0+"))  # a key of a topic has one version
            if "taggedVersions" in field and first > span(field["taggedVersions"])[0]:
                first = span(field["taggedVersions"])[0]
            if last < floor or first > ceiling:
                continue
            lines.append(self.field(field, max(first, 0), last, floor, ceiling, renamed))
        body = "\n".join(lines) or "    pass"
        text = f'class {name}(Message):\n    """{about}"""\n\n{extra}{body}\n'
        if name in self.classes and self.classes[name] != text:
            raise SystemExit(f"two different {name}")
        self.classes[name] = text
        return name

    def field(self, field: dict[str, Any], first: int, last: int, floor: int, ceiling: int,
              renamed: dict[str, str]) -> str:  # fmt: skip
        kind = field["type"]
        listed = kind.startswith("[]")
        element = kind[2:] if listed else kind
        if element in PRIMITIVES:
            target = PRIMITIVES[element]
            self.names.add(target)
        else:
            target = renamed.get(element, element)
            if "fields" in field:
                self.add(
                    target,
                    field["fields"],
                    "",
                    f"An element of `{snake(field['name'])}`."
                    if listed
                    else f"The struct in `{snake(field['name'])}`.",
                    floor,
                    ceiling,
                    renamed,
                )
        nullable = "nullableVersions" in field
        annotation = f"list[{target}]" if listed else target
        if nullable:
            annotation += " | None"
        default = field.get("default")
        if default == "null":
            value = "None"
        elif listed:
            value = "[]"
        elif target in PRIMITIVES.values():
            value = ZEROS.get(target, "0")
            if default is not None:
                value = f'"{default}"' if target == "string" else str(default)
                value = {"true": "True", "false": "False"}.get(value, value)
                if value.startswith(("0x", "-0x")):
                    value = str(int(value, 16))
        else:
            value = "None" if nullable else f"field(default_factory={target})"
        tag = field.get("tag") if "taggedVersions" in field else None
        marks = ""
        if tag is not None:
            marks = f"Versions({first}, {LAST if last >= ceiling else last}, tag={tag})"
            self.names.add("Versions")
        elif first > floor and last < ceiling:
            marks = f"Versions({first}, {last})"
            self.names.add("Versions")
        elif first > floor:
            marks = f"since({first})"
            self.names.add("since")
        elif last < ceiling:
            marks = f"until({last})"
            self.names.add("until")
        if marks:
            annotation = f"Annotated[{annotation}, {marks}]"
        return f"    {snake(field['name'])}: {annotation} = {value}"

    def text(self, docstring: str) -> str:
        body = "\n\n".join(self.classes.values())
        imports = []
        if "ClassVar" in body or "Annotated" in body:
            wanted = [w for w in ("Annotated", "ClassVar") if w in body]
            imports.append(f"from typing import {', '.join(wanted)}\n")
        if "default_factory" in body:
            imports.append("from msgspec import field\n")
        if "NIL_UUID" in body:
            imports.append("from headwater.protocol.primitives import NIL_UUID")
        used = sorted({"Message", *self.names}, key=lambda n: (n[0].islower(), n))
        imports.append(f"from headwater.protocol.schema import {', '.join(used)}")
        return f'"""{docstring}"""\n\n' + "\n".join(imports) + "\n\n\n" + body


def load(jars: list[str]) -> dict[str, dict[str, Any]]:
    schemas = {}
    for jar in jars:
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if name.startswith("common/message/") and name.endswith(".json"):
                    text = re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE)
                    schemas[Path(name).stem] = json.loads(text)
    return schemas


def emit(module: Module, schema: dict[str, Any], prefix: str, about: str) -> None:
    name = schema["name"]
    floor, ceiling = span(schema["validVersions"])
    nested = re.findall(r'"type": "(?:\[\])?([A-Z]\w+)"', json.dumps(schema))
    renamed = {n: n if n.startswith(prefix) else prefix + n for n in nested}
    waiting = list(schema.get("commonStructs", []))
    while waiting:  # a class stands behind those that it is made of
        parts = {each["name"] for each in waiting}
        common = next(
            each
            for each in waiting
            if not any(field["type"].removeprefix("[]") in parts for field in each["fields"])
        )
        waiting.remove(common)
        module.add(renamed.get(common["name"], common["name"]), common["fields"], "",
                   f"A part of {name}.", floor, ceiling, renamed)  # fmt: skip
    extra = ""
    if "apiKey" in schema:
        extra += f"    api_key: ClassVar[int] = {schema['apiKey']}\n"
    flexible = span(schema.get("flexibleVersions"))[0]
    if flexible != LAST:
        extra += f"    flexible: ClassVar[int] = {flexible}\n"
    if extra:
        extra += "\n"
    module.add(name, schema["fields"], extra, about, floor, ceiling, renamed)


def main() -> None:
    schemas = load(sys.argv[1:])
    for api in APIS:
        module = Module()
        request, response = schemas[f"{api}Request"], schemas[f"{api}Response"]
        for schema, what in ((request, "Request"), (response, "Response")):
            emit(
                module,
                schema,
                f"{api}{what}",
                f"{what} of {api}, versions {schema['validVersions']}.",
            )
        head = f"{api} (API key {request['apiKey']}). Generated by tools/generate_messages.py."
        (TARGET / f"{snake(api)}.py").write_text(module.text(head))
    module = Module()
    for name in INTERNAL:
        schema = schemas[name]
        emit(module, schema, name, f"{name}, versions {schema['validVersions']}.")
    head = "Keys and values inside internal topics. Generated by tools/generate_messages.py."
    (TARGET / "internal.py").write_text(module.text(head))
    (TARGET / "__init__.py").write_text(
        '"""Kafka\'s messages, one module per API. Generated by tools/generate_messages.py."""\n'
    )


if __name__ == "__main__":
    main()
