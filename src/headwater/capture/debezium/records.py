"""Records of a connector, read out of the JVM in bulk.

A call from Python into Java costs about as much as writing a record down as JSON. So a pipeline is
put together out of Java's own parts (method handles in a stream), and one call gives the values of
all records of a poll, one in each line: JSON has no line breaks in it.
"""

from collections.abc import Sequence
from typing import Any

from headwater.capture.contract import Record
from headwater.capture.debezium import jvm

CONNECT = "org.apache.kafka.connect"


class Batch:
    """The answer to one poll. A record that a transform dropped has the topic None."""

    def __init__(
        self,
        records: Sequence[Any],
        topics: Sequence[str | None],
        keys: Sequence[bytes],
        values: Sequence[bytes],
        headers: Sequence[Sequence[tuple[str, bytes | None]]] | None = None,
    ) -> None:
        """`records` are those of Kafka Connect; an empty key or value is none."""
        self.records = records
        self.topics = topics
        self._keys = keys
        self._values = values
        self._headers = headers

    def record(self, index: int, ordinal: int) -> Record:
        topic = self.topics[index]
        assert topic is not None
        headers = self._headers[index] if self._headers is not None else ()
        return Record(
            topic, self._keys[index] or None, self._values[index] or None, headers, ordinal
        )

    def size_bytes(self, index: int) -> int:
        """In memory, roughly."""
        return 300 + len(self._keys[index]) + len(self._values[index])


NOTHING = Batch((), (), (), ())


class BatchReader:
    def __init__(self, schemas: bool, transforms: Any, untransformed: Sequence[str]) -> None:
        """`transforms`: Debezium's Transformations, or None. Records for the topics
        `untransformed` are none of their business.
        """
        self._transforms = transforms
        self._untransformed = frozenset(untransformed)
        converter = jvm.java(f"{CONNECT}.json.JsonConverter")
        self._key_converter, self._value_converter = converter(), converter()
        for converter, is_key in ((self._key_converter, True), (self._value_converter, False)):
            settings = jvm.java_map({"schemas.enable": str(schemas).lower()})
            converter.configure(settings, is_key)
        self._key_lines = _lines_of(_converted(self._key_converter, "keySchema", "key"))
        self._value_lines = _lines_of(_converted(self._value_converter, "valueSchema", "value"))
        self._topic_lines = _lines_of(_getter("topic"))
        self._header_lines = _lines_of(_header_count())

    def read(self, records: Any) -> Batch:
        if records is None or records.isEmpty():
            return NOTHING
        if self._transforms is not None:
            return self._transformed(records)
        return self._read(records)

    def _read(self, records: Any) -> Batch:
        topics = [topic.decode() for topic in self._topic_lines(records)]
        keys, values = self._key_lines(records), self._value_lines(records)
        counts = self._header_lines(records)
        headers = None
        if counts.count(b"0") != len(counts):
            headers = [
                () if count == b"0" else self._headers(records.get(index))
                for index, count in enumerate(counts)
            ]
        return Batch(records, topics, keys, values, headers)

    def _headers(self, record: Any) -> Sequence[tuple[str, bytes | None]]:
        topic, convert = record.topic(), self._key_converter.fromConnectHeader
        found: list[tuple[str, bytes | None]] = []
        for header in record.headers():
            value = convert(topic, header.key(), header.schema(), header.value())
            found.append((str(header.key()), None if value is None else bytes(value)))
        return found

    def _transformed(self, records: Any) -> Batch:
        """The records stay those of the connector, for their offsets count."""
        wanted_records = jvm.java("java.util.ArrayList")()
        indexes = []
        for index, record in enumerate(records):
            wanted = record
            if str(record.topic()) not in self._untransformed:
                wanted = self._transforms.transform(record)
            if wanted is not None:
                indexes.append(index)
                wanted_records.add(wanted)
        batch = self._read(wanted_records) if indexes else NOTHING
        count = records.size()
        topics: list[str | None] = [None] * count
        keys, values = [b""] * count, [b""] * count
        headers: list[Sequence[tuple[str, bytes | None]]] = [()] * count
        for number, index in enumerate(indexes):
            made = batch.record(number, 0)
            topics[index] = made.topic
            keys[index], values[index] = made.key or b"", made.value or b""
            headers[index] = made.headers
        return Batch(records, topics, keys, values, headers)


def _lines_of(handle: Any) -> Any:
    """From a method handle (record → text) to a function (records → one line for each)."""
    import jpype

    function = jvm.java("java.lang.invoke.MethodHandleProxies").asInterfaceInstance(
        jvm.java("java.util.function.Function").class_, handle
    )
    joining = jvm.java("java.util.stream.Collectors").joining("\n")
    text = jvm.java("java.lang.String")
    utf8 = jvm.java("java.nio.charset.StandardCharsets").UTF_8

    def lines(records: Any) -> list[bytes]:
        joined = jpype.JObject(records.stream().map(function).collect(joining), text)
        return bytes(joined.getBytes(utf8)).split(b"\n")

    return lines


def _lookup() -> Any:
    return jvm.java("java.lang.invoke.MethodHandles").publicLookup()


def _type(returned: str, *arguments: str) -> Any:
    kinds = [jvm.java(name).class_ for name in (returned, *arguments)]
    return jvm.java("java.lang.invoke.MethodType").methodType(kinds[0], kinds[1:])


def _getter(name: str, returned: str = "java.lang.String") -> Any:
    record = jvm.java(f"{CONNECT}.connector.ConnectRecord").class_
    return _lookup().findVirtual(record, name, _type(returned))


def _header_count() -> Any:
    """Record → how many headers it has, as text."""
    handles = jvm.java("java.lang.invoke.MethodHandles")
    headers = f"{CONNECT}.header.Headers"
    count = _lookup().findVirtual(jvm.java(headers).class_, "size", _int_type())
    text = _lookup().findStatic(
        jvm.java("java.lang.Integer").class_, "toString", _type_of_int_to_text()
    )
    counted = handles.filterReturnValue(_getter("headers", headers), count)
    return handles.filterReturnValue(counted, text)


def _int_type() -> Any:
    return jvm.java("java.lang.invoke.MethodType").methodType(jvm.java("java.lang.Integer").TYPE)


def _type_of_int_to_text() -> Any:
    return jvm.java("java.lang.invoke.MethodType").methodType(
        jvm.java("java.lang.String").class_, jvm.java("java.lang.Integer").TYPE
    )


def _converted(converter: Any, schema: str, value: str) -> Any:
    """Record → JSON as text, empty for null."""
    handles = jvm.java("java.lang.invoke.MethodHandles")
    methods = jvm.java("java.lang.invoke.MethodType")
    text, record = jvm.java("java.lang.String").class_, f"{CONNECT}.connector.ConnectRecord"
    octets = jvm.java("byte[]").class_
    convert = _lookup().bind(
        converter,
        "fromConnectData",
        methods.methodType(
            octets,
            [text, jvm.java(f"{CONNECT}.data.Schema").class_, jvm.java("java.lang.Object").class_],
        ),
    )
    # (topic, schema, value) → (record, record, record) → (record)
    parts = [
        _getter("topic"),
        _getter(schema, f"{CONNECT}.data.Schema"),
        _getter(value, "java.lang.Object"),
    ]
    convert = handles.filterArguments(convert, 0, parts)
    kind = methods.methodType(octets, jvm.java(record).class_)
    convert = handles.permuteArguments(convert, kind, [0, 0, 0])
    charset = jvm.java("java.nio.charset.StandardCharsets").UTF_8
    decode = _lookup().findConstructor(
        text,
        methods.methodType(
            jvm.java("java.lang.Void").TYPE,
            [octets, jvm.java("java.nio.charset.Charset").class_],
        ),
    )
    decode = handles.insertArguments(decode, 1, charset)
    is_null = (
        _lookup()
        .findStatic(
            jvm.java("java.util.Objects").class_,
            "isNull",
            methods.methodType(
                jvm.java("java.lang.Boolean").TYPE, jvm.java("java.lang.Object").class_
            ),
        )
        .asType(methods.methodType(jvm.java("java.lang.Boolean").TYPE, octets))
    )
    empty = handles.dropArguments(handles.constant(text, ""), 0, [octets])
    return handles.filterReturnValue(convert, handles.guardWithTest(is_null, empty, decode))
