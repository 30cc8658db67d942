"""Events as MySQL writes them (none runs here), and events that no server writes.

The bytes are made by this file after the servers' documented formats; those of MariaDB come from a
real one, through the other tests.
"""

import json
import struct
import zlib
from contextlib import suppress
from typing import Any

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from headwater.capture.contract import (
    Begin,
    Change,
    Commit,
    Event,
    PositionAdvanced,
    Row,
    SourcePosition,
    TableFailed,
)
from headwater.capture.mysql import ddl
from headwater.capture.mysql.binlog import events as binlog
from headwater.capture.mysql.binlog import json_binary, table_map
from headwater.capture.mysql.binlog.gtids import MariaDbGtids, MySqlGtids
from headwater.capture.mysql.binlog.positions import order
from headwater.capture.mysql.binlog.row_decoder import RowCode
from headwater.capture.mysql.catalog import Choice
from headwater.capture.mysql.columns import ColumnDef
from headwater.capture.mysql.server import Server
from headwater.capture.mysql.stream.binlog_stream import BinlogStream
from headwater.capture.mysql.stream.schema_history import SchemaHistory
from headwater.capture.settings import CaptureSettings
from headwater.errors import CaptureError, HeadwaterError, PositionLost, SourceUnreachable
from headwater.settings import Secret

SETTINGS = CaptureSettings("shop", Secret("mysql://localhost/shop"))
UUID = bytes(range(16))
UUID_TEXT = "00010203-0405-0607-0809-0a0b0c0d0e0f"
SERVER = Server(
    7, "8.0.36", is_mariadb=False, has_gtids=True, has_checksums=True, lowers_names=False
)


class FakeCharsets:
    def max_bytes(self, charset: str) -> int:
        return 4

    def of_collation(self, number: int) -> str:
        return "utf8mb4"

    def decoder(self, charset: str) -> Any:
        return bytes.decode


class FakeDump:
    """Packets from a list, as a connection would give them; then the connection is lost."""

    def __init__(self, packets: list[bytes]) -> None:
        self.framing = binlog.Framing(has_checksums=True, file="binlog.000001")
        self.position = 4
        self._packets = iter(packets)

    def event(self, wait_s: float) -> binlog.Event:
        try:
            event = self.framing.event(next(self._packets), 1)
        except StopIteration:
            raise SourceUnreachable("the end") from None
        if event.type == binlog.ROTATE:
            try:
                self.framing.file, self.position = binlog.read_rotate(event)
            except ValueError as error:
                raise self.framing.malformed(event.end, str(error)) from error
        elif event.end:
            self.position = event.end
        return event

    def waited(self) -> None:
        pass


class FakeSchemas(SchemaHistory):
    """Whose catalog has no tables."""

    def __init__(self) -> None:
        super().__init__(
            SETTINGS, Choice(("*.*",), ()), None, SERVER, FakeCharsets(), lambda *_: None
        )

    def _current(self, pairs: Any) -> dict[str, Any]:
        return {}

    def _refuse_history(self, found: Any) -> None:
        pass

    def _read(self, *_: Any, **__: Any) -> tuple[dict[str, Any], set[str]]:
        return {}, set()


class FakeSource:
    is_awaited = False


class Log:
    """Writes a binlog."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self.end = 4

    def add(self, kind: int, body: bytes, *, flags: int = 0, checksum: bool = True) -> None:
        event = self.event(kind, body, flags=flags, checksum=checksum)
        self.packets.append(b"\0" + event)

    def event(self, kind: int, body: bytes, *, flags: int = 0, checksum: bool = True) -> bytes:
        size = 19 + len(body) + 4 * checksum
        self.end += size
        event = binlog.HEADER.pack(1_700_000_000, kind, 7, size, self.end, flags) + body
        return event + zlib.crc32(event).to_bytes(4, "little") if checksum else event

    def describe(self) -> None:
        sizes = bytearray(41)
        sizes[binlog.TABLE_MAP - 1] = 8
        self.add(
            binlog.FORMAT_DESCRIPTION,
            struct.pack("<H50sIB", 4, b"8.0.36", 0, 19) + bytes(sizes) + b"\1",
        )

    def gtid(self, number: int) -> None:
        committed_us = 1_700_000_000_123_456
        body = b"\1" + UUID + struct.pack("<QBQQ", number, 2, 0, 0)
        self.add(binlog.GTID, body + committed_us.to_bytes(7, "little"))

    def query(self, text: str) -> None:
        self.add(binlog.QUERY, query(text))


def query(text: str) -> bytes:
    return struct.pack("<IIBHH", 5, 0, 4, 0, 0) + b"shop\0" + text.encode()


def mapped(table_id: int = 9, *, has_names: bool = True) -> bytes:
    """shop.t (id INT PRIMARY KEY, name VARCHAR(20), doc JSON)"""
    types = bytes([table_map.LONG, table_map.VARCHAR, table_map.JSON])
    metas = struct.pack("<HB", 80, 4)
    body = table_id.to_bytes(6, "little") + b"\1\0" + b"\4shop\0\1t\0"
    body += bytes([3]) + types + bytes([len(metas)]) + metas + b"\6"
    body += b"\1\1\0" + b"\2\1\x2d"  # signed; utf8mb4
    if has_names:
        body += b"\4\x0c\2id\4name\3doc" + b"\x08\1\0"
    return body


def rows(*images: bytes, table_id: int = 9, is_update: bool = False) -> bytes:
    """Version 2, as MySQL writes them since 5.6, with extra data of no bytes."""
    head = table_id.to_bytes(6, "little") + b"\1\0" + b"\2\0" + b"\3" + b"\7" * (1 + is_update)
    return head + b"".join(images)


def image(key: int, name: str | None, doc: bytes = b"") -> bytes:
    text = b"" if name is None else bytes([len(name)]) + name.encode()
    nulls = 0 if name is not None else 2
    return bytes([nulls]) + struct.pack("<i", key) + text + struct.pack("<I", len(doc)) + doc


def read(packets: list[bytes], after: SourcePosition | None = None) -> list[Event]:
    schemas = FakeSchemas()
    schemas._certain["shop.t"] = table_map.definition(
        table_map.parse(mapped()),
        FakeCharsets(),  # type: ignore[arg-type]
    )
    stream = BinlogStream(
        SETTINGS,
        FakeDump(packets),  # type: ignore[arg-type]
        schemas,
        MySqlGtids(f"{UUID_TEXT}:1-4"),
        after or SourcePosition({"file": "binlog.000001", "pos": 4, "server": 7}),
        server_id=7,
        is_by_gtid=False,
        with_statements=True,
        copied={},
    )
    found: list[Event] = []
    try:
        found.extend(stream.events(FakeSource()))
    except SourceUnreachable:
        return found
    return found


def a_transaction(log: Log) -> None:
    log.describe()
    log.gtid(5)
    log.query("BEGIN")
    log.add(binlog.ROWS_QUERY, b"\x06INSERT")
    log.add(binlog.TABLE_MAP, mapped())
    log.add(binlog.WRITE_ROWS, rows(image(1, "one"), image(2, None)))
    log.add(binlog.TABLE_MAP, mapped())
    log.add(binlog.UPDATE_ROWS, rows(image(1, "one"), image(1, "uno"), is_update=True))
    log.add(binlog.DELETE_ROWS, rows(image(2, None)))
    log.add(binlog.XID, bytes(8))


EXPECTED: list[tuple[str, Row | None, Row | None]] = [
    ("c", None, {"id": 1, "name": "one", "doc": "null"}),
    ("c", None, {"id": 2, "name": None, "doc": "null"}),
    ("u", {"id": 1, "name": "one", "doc": "null"}, {"id": 1, "name": "uno", "doc": "null"}),
    ("d", {"id": 2, "name": None, "doc": "null"}, None),
]


def summary(events: list[Event]) -> list[tuple[str, Row | None, Row | None]]:
    return [(e.op, e.before, e.after) for e in events if isinstance(e, Change)]


def test_a_transaction_of_mysql() -> None:
    log = Log()
    a_transaction(log)
    events = read(log.packets)
    begin = events[0]
    assert isinstance(begin, Begin)
    assert begin.id == f"{UUID_TEXT}:5"
    assert begin.at["gtids"] == f"{UUID_TEXT}:1-4"
    assert begin.ts_ms == 1_700_000_000_123
    assert begin.source["thread"] == 5
    assert summary(events) == EXPECTED
    assert [e.source["query"] for e in events if isinstance(e, Change)] == ["INSERT"] * 4
    assert events[-1] == Commit(4)


def test_a_compressed_transaction_of_mysql() -> None:
    plain, log = Log(), Log()
    a_transaction(plain)
    inner = Log()
    parts = b"".join(
        inner.event(kind, body, checksum=False)
        for kind, body in [
            (binlog.QUERY, query("BEGIN")),
            (binlog.TABLE_MAP, mapped()),
            (binlog.WRITE_ROWS, rows(image(1, "one"), image(2, None))),
            (binlog.TABLE_MAP, mapped()),
            (binlog.UPDATE_ROWS, rows(image(1, "one"), image(1, "uno"), is_update=True)),
            (binlog.DELETE_ROWS, rows(image(2, None))),
            (binlog.XID, bytes(8)),
        ]
    )
    packed = bytes(cramjam.zstd.compress(parts))

    def number(value: int) -> bytes:
        text = value.to_bytes(2, "little")
        return b"\3\xfc" + text if value > 250 else b"\1" + bytes([value])

    head = b"\2\1\0" + b"\1" + number(len(packed)) + b"\3" + number(len(parts)) + b"\0"
    log.describe()
    log.gtid(5)
    log.add(binlog.TRANSACTION_PAYLOAD, head + packed)
    log.gtid(6)
    log.query("BEGIN")
    log.add(binlog.TABLE_MAP, mapped())
    log.add(binlog.WRITE_ROWS, rows(image(3, "x")))
    log.add(binlog.XID, bytes(8))
    events = read(log.packets)
    assert summary(events)[:4] == EXPECTED
    begins = [event for event in events if isinstance(event, Begin)]
    assert [begin.id for begin in begins] == [f"{UUID_TEXT}:5", f"{UUID_TEXT}:6"]
    assert order(begins[0].at) < order(begins[1].at)
    cut = [*log.packets[:2], log.packets[2][:-9]]
    with pytest.raises(CaptureError):
        read(cut)


@pytest.mark.parametrize("sent", [0, 1, 3, 4])
def test_a_transaction_of_mysql_goes_on_in_its_middle(sent: int) -> None:
    log = Log()
    a_transaction(log)
    begin = next(event for event in read(log.packets) if isinstance(event, Begin))
    events = read(log.packets, SourcePosition(begin.at, sent))
    assert summary(events) == EXPECTED[sent:]
    assert isinstance(events[0], Begin)
    assert events[-1] == Commit(4)
    assert summary(read(log.packets, SourcePosition(begin.at))) == []
    with pytest.raises(PositionLost):
        read(log.packets, SourcePosition({**begin.at, "gtid": f"{UUID_TEXT}:9"}, sent))


def test_partial_updates_fail_their_table() -> None:
    log = Log()
    log.describe()
    log.gtid(5)
    log.query("BEGIN")
    log.add(binlog.TABLE_MAP, mapped())
    log.add(binlog.PARTIAL_UPDATE_ROWS, rows(image(1, "x"), is_update=True))
    log.add(binlog.XID, bytes(8))
    [failed] = [event for event in read(log.packets) if isinstance(event, TableFailed)]
    assert failed.table_id == "shop.t"
    assert "binlog_row_value_options" in failed.error.hint


def test_heartbeats_and_rotations_move_the_position() -> None:
    log = Log()
    log.describe()
    field = b"\1\x0dbinlog.000001" + b"\2\3\xfc\x00\x10" + b"\0"
    log.add(binlog.HEARTBEAT_V2, field)
    log.end = 4
    log.add(binlog.ROTATE, struct.pack("<Q", 4) + b"binlog.000002")
    positions = [
        event.at for event in read_with_idle(log.packets) if isinstance(event, PositionAdvanced)
    ]
    assert (positions[-2]["file"], positions[-2]["pos"]) == ("binlog.000001", 0x1000)
    assert positions[-1]["file"] == "binlog.000002"


def read_with_idle(packets: list[bytes]) -> list[Event]:
    """As if there were a pause behind every event."""

    class Pausing(FakeDump):
        is_pause = True

        def event(self, wait_s: float) -> Any:
            self.is_pause = not self.is_pause
            return None if self.is_pause else super().event(wait_s)

    schemas = FakeSchemas()
    after = SourcePosition({"file": "binlog.000001", "pos": 4, "server": 7})
    stream = BinlogStream(
        SETTINGS, Pausing(packets), schemas, MySqlGtids(), after,  # type: ignore[arg-type]
        server_id=7, is_by_gtid=False, with_statements=False, copied={},
    )  # fmt: skip
    found: list[Event] = []
    with pytest.raises(SourceUnreachable):
        found.extend(stream.events(FakeSource()))
    return found


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (99, b""),
        (binlog.XID, bytes(8)),
        (binlog.WRITE_ROWS, rows(image(1, "x"))),
        (binlog.TABLE_MAP, mapped()[:-2]),
        (binlog.ROTATE, b"\4"),
        (binlog.INCIDENT, b"\1\0"),
        (binlog.GTID_TAGGED, b""),
        (binlog.GTID_TAGGED, b"\4\0\0"),  # of another version
        (binlog.GTID_TAGGED, b"\2\0\0\0\2\2" + UUID[:3]),
        (binlog.GTID_TAGGED, b"\2\0\0\4\4"),  # without its uuid
    ],
)
def test_an_event_that_cannot_be_is_an_error_with_its_position(kind: int, body: bytes) -> None:
    log = Log()
    log.describe()
    log.add(kind, body)
    with pytest.raises(CaptureError) as caught:
        read(log.packets)
    assert "binlog.000001" in caught.value.detail


def test_ignorable_events_are_passed_over() -> None:
    log = Log()
    log.describe()
    log.add(99, b"news", flags=0x80)
    a_transaction(log)
    assert summary(read(log.packets)) == EXPECTED


def test_a_wrong_checksum_is_found() -> None:
    log = Log()
    a_transaction(log)
    packets = list(log.packets)
    packets[5] = packets[5][:40] + bytes([packets[5][40] ^ 1]) + packets[5][41:]
    with pytest.raises(CaptureError, match="checksum"):
        read(packets)


@settings(max_examples=examples(250), deadline=None)
@given(st.data())
def test_damaged_events_give_errors_of_ours_or_events(data: st.DataObject) -> None:
    """Whatever the bytes: the checksum is made to fit, so that the decoders see them."""
    log = Log()
    a_transaction(log)
    bodies = [(packet[5], bytearray(packet[20:-4])) for packet in log.packets]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(bodies) - 1))
        kind, body = bodies[at]
        what = data.draw(st.sampled_from(["flip", "cut", "grow", "kind"]))
        if what == "flip" and body:
            index = data.draw(st.integers(0, len(body) - 1))
            body[index] = data.draw(st.integers(0, 255))
        elif what == "cut":
            del body[data.draw(st.integers(0, len(body))) :]
        elif what == "grow":
            body += data.draw(st.binary(max_size=30))
        else:
            bodies[at] = (data.draw(st.integers(0, 175)), body)
    damaged = Log()
    for kind, body in bodies:
        damaged.add(kind, bytes(body))
    with suppress(HeadwaterError):
        read(damaged.packets)


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_no_event(data: bytes) -> None:
    log = Log()
    log.describe()
    with pytest.raises(HeadwaterError):
        read([*log.packets, b"\0" + data])
        raise SourceUnreachable("events of ours")  # nothing else is wrong with them


@settings(max_examples=examples(150), deadline=None)
@given(st.binary(max_size=120), st.integers(0, 255), st.integers(0, 255), st.integers(0, 255))
def test_any_rows_of_any_table_raise_what_the_stream_expects(
    data: bytes, kind: int, first: int, second: int
) -> None:
    table = table_map.TableMap(
        "s", "t", [table_map.LONG, kind], [(0, 0), (first, second)], [False, True]
    )
    columns = [ColumnDef("a", "int", optional=False), ColumnDef("b", "enum('x')", optional=True)]
    try:
        code = RowCode(table, columns, SETTINGS, FakeCharsets())  # type: ignore[arg-type]
        code.count(b"\3")(data, 0)
        code.created(b"\3")(data, 0)
        code.updates(b"\3", b"\2")(data, 0)
    except (LookupError, ValueError, struct.error, ArithmeticError):
        pass


# --- JSON ---


def encoded(value: Any, *, is_large: bool) -> bytes:
    kind, data = _encoded(value, is_large)
    return bytes([kind]) + data


def _encoded(value: Any, is_large: bool) -> tuple[int, bytes]:
    if value is None or isinstance(value, bool):
        return 4, bytes([{None: 0, True: 1, False: 2}[value]])
    if isinstance(value, int):
        for kind, form in ((5, "<h"), (6, "<H"), (7, "<i"), (8, "<I"), (9, "<q"), (10, "<Q")):
            try:
                return kind, struct.pack(form, value)
            except struct.error:
                continue
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if isinstance(value, str):
        text = value.encode()
        size, head = len(text), b""
        while size > 0x7F:
            head += bytes([size & 0x7F | 0x80])
            size >>= 7
        return 12, head + bytes([size]) + text
    return _container(value, is_large)


def _container(value: Any, is_large: bool) -> tuple[int, bytes]:
    form, width = ("<I", 4) if is_large else ("<H", 2)
    keys = list(value) if isinstance(value, dict) else []
    values = list(value.values()) if isinstance(value, dict) else value
    head_bytes = 2 * width + len(keys) * (width + 2) + len(values) * (1 + width)
    key_entries, value_entries, tail = b"", b"", b""
    for key in keys:
        text = key.encode()
        key_entries += struct.pack(form, head_bytes + len(tail)) + struct.pack("<H", len(text))
        tail += text
    for item in values:
        kind, data = _encoded(item, is_large)
        if kind in (4, 5, 6) or (is_large and kind in (7, 8)):
            value_entries += bytes([kind]) + data.ljust(width, b"\0")
        else:
            value_entries += bytes([kind]) + struct.pack(form, head_bytes + len(tail))
            tail += data
    body = key_entries + value_entries + tail
    size = 2 * width + len(body)
    head = struct.pack(form, len(values)) + struct.pack(form, size)
    return (0 if isinstance(value, dict) else 2) + is_large, head + body


DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=5)
    | st.dictionaries(st.text(max_size=9), inner, max_size=5),
    max_leaves=15,
)  # fmt: skip


@settings(max_examples=examples(100), deadline=None)
@given(DOCUMENTS, st.booleans())
def test_json_of_mysql(value: Any, is_large: bool) -> None:
    text = json_binary.to_text(encoded(value, is_large=is_large))
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x00\x01\x00\x0d\x00\x0b\x00\x02\x00\x05\x01\x00ab", '{"ab": 1}'),
        (b"\x0f\xf6\x05\x05\x02\x80\x7b\x2d", "123.45"),
        (b"\x0f\x0b\x08" + struct.pack("<q", -(12 << 36 | 500000)), '"-12:00:00.500000"'),
        (b"\x0f\x0a\x08" + struct.pack("<q", (2015 * 13 + 1) << 46 | 15 << 41), '"2015-01-15"'),
        (b"\x0f\xfc\x02ab", '"base64:type252:YWI="'),
        (b"", "null"),
    ],
)
def test_json_with_values_that_json_lacks(data: bytes, text: str) -> None:
    assert json_binary.to_text(data) == text


@settings(max_examples=examples(150), deadline=None)
@given(DOCUMENTS, st.booleans(), st.data())
def test_damaged_json_raises_what_the_stream_expects(
    value: Any, is_large: bool, data: st.DataObject
) -> None:
    damaged = bytearray(encoded(value, is_large=is_large))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(LookupError, ValueError, struct.error):
        json_binary.to_text(bytes(damaged))


def test_json_that_refers_to_itself_is_no_bomb() -> None:
    # An array of 20 values, each of which is the array itself.
    entries = b"".join(b"\2" + struct.pack("<H", 0) for _ in range(20))
    with pytest.raises(ValueError):
        json_binary.to_text(b"\2" + struct.pack("<HH", 20, 64) + entries)


# --- sets of transactions, statements ---


def test_sets_of_mysql() -> None:
    gtids = MySqlGtids(f"{UUID_TEXT}:1-4:9,\n ffffffff-0000-0000-0000-000000000000:7")
    assert f"{UUID_TEXT}:4" in gtids
    assert f"{UUID_TEXT}:5" not in gtids
    for number in (6, 5, 8, 7):
        gtids.add(f"{UUID_TEXT}:{number}")
    assert str(gtids) == f"{UUID_TEXT}:1-9,ffffffff-0000-0000-0000-000000000000:7"
    head = gtids.encoded()[:48]
    assert head == struct.pack("<Q16sQQQ", 2, UUID, 1, 1, 10)
    with pytest.raises(CaptureError):
        MySqlGtids(f"{UUID_TEXT}:1-x")


def test_sets_of_mysql_with_tags() -> None:
    other = "ffffffff-0000-0000-0000-000000000000"
    text = f"{UUID_TEXT}:1-4:blue:1-2:7:red_2:3,{other}:t:5"
    gtids = MySqlGtids(text.upper())
    assert str(gtids) == text
    assert f"{UUID_TEXT}:blue:7" in gtids
    assert f"{UUID_TEXT}:7" not in gtids
    assert f"{other}:5" not in gtids
    gtids.add(f"{UUID_TEXT}:blue:3")
    gtids.add(f"{UUID_TEXT}:green:1")
    assert str(gtids) == f"{UUID_TEXT}:1-4:blue:1-3:7:green:1:red_2:3,{other}:t:5"
    assert str(MySqlGtids(f"{UUID_TEXT}:blue:1:2")) == f"{UUID_TEXT}:blue:1-2"
    one = MySqlGtids(f"{UUID_TEXT}:3:blue:1").encoded()
    without = UUID + b"\0" + struct.pack("<QQQ", 1, 3, 4)
    tagged = UUID + b"\x08blue" + struct.pack("<QQQ", 1, 1, 2)
    assert one == bytes([1, 2, 0, 0, 0, 0, 0, 1]) + without + tagged


def variable(number: int) -> bytes:
    """MySQL's serialization: as many ones in the lowest bits as bytes follow the first."""
    size = next(n for n in range(1, 10) if n == 9 or number < 1 << 7 * n)
    if size == 9:
        return b"\xff" + number.to_bytes(8, "little")
    return (number << size | (1 << size - 1) - 1).to_bytes(size, "little")


@given(
    tag=st.from_regex("[a-z_][a-z0-9_]{0,31}", fullmatch=True),
    number=st.integers(1, (1 << 63) - 2),
    committed_us=st.integers(1000, (1 << 55) - 1),
)
def test_a_tagged_id_of_mysql(tag: str, number: int, committed_us: int) -> None:
    fields = [
        (0, variable(1)),
        (1, b"".join(variable(byte) for byte in UUID)),
        (2, variable(number << 1)),
        (3, variable(len(tag)) + tag.encode()),
        (4, variable(2 << 1)),
        (5, variable(300 << 1)),
        (6, variable(committed_us)),
        (8, variable(276)),
        (9, variable(90_704)),
    ]
    content = b"".join(variable(kind) + value for kind, value in fields)
    log = Log()
    log.describe()
    log.add(binlog.GTID_TAGGED, variable(1) + variable(len(content)) + variable(0) + content)
    log.query("BEGIN")
    log.add(binlog.TABLE_MAP, mapped())
    log.add(binlog.WRITE_ROWS, rows(image(1, "one")))
    log.add(binlog.XID, bytes(8))
    log.gtid(5)
    log.query("BEGIN")
    log.add(binlog.TABLE_MAP, mapped())
    log.add(binlog.WRITE_ROWS, rows(image(2, "two")))
    log.add(binlog.XID, bytes(8))
    first, second = [event for event in read(log.packets) if isinstance(event, Begin)]
    assert first.id == first.at["gtid"] == f"{UUID_TEXT}:{tag}:{number}"
    assert first.ts_ms == committed_us // 1000
    assert second.at["gtids"] == f"{UUID_TEXT}:1-4:{tag}:{number}"


def test_ids_of_mariadb() -> None:
    gtids = MariaDbGtids("0-1-100,5-2-7")
    assert "0-3-99" in gtids
    assert "0-1-101" not in gtids
    assert "9-1-1" not in gtids
    gtids.add("0-2-101")
    assert str(gtids) == "0-2-101,5-2-7"
    with pytest.raises(CaptureError):
        MariaDbGtids("nonsense")


def test_files_are_in_the_order_of_their_numbers() -> None:
    names = ["binlog.000009", "binlog.000010", "binlog.999999", "binlog.1000000"]
    orders = [order({"file": name, "pos": 4}) for name in names]
    assert orders == sorted(orders)
    with pytest.raises(CaptureError):
        order({"file": "nonsense"})


@pytest.mark.parametrize(
    ("statement", "kind", "tables"),
    [
        ("ALTER TABLE t ADD x INT", "alter", ["d.t"]),
        ("alter online ignore table `a``b`.`c.d` drop x", "alter", ["a`b.c.d"]),
        ("/* hi */ ALTER /*!50000 TABLE */ IF EXISTS t RENAME TO u.v", "alter", ["d.t", "u.v"]),
        ("ALTER TABLE t RENAME COLUMN a TO b", "alter", ["d.t"]),
        ("ALTER TABLE t RENAME INDEX a TO b, RENAME AS w", "alter", ["d.t", "d.w"]),
        ("CREATE OR REPLACE TABLE t (a INT)", "create", ["d.t"]),
        ("CREATE TABLE IF NOT EXISTS x.t LIKE y.u", "create", ["x.t"]),
        ('CREATE TABLE "t" AS SELECT 1', "create", ["d.t"]),
        ("DROP TABLE IF EXISTS a, b.c, `d` /* by server */", "drop", ["d.a", "b.c", "d.d"]),
        ("RENAME TABLE a TO b, c.d TO e.f", "rename", ["d.a", "d.b", "c.d", "e.f"]),
        ("RENAME TABLE a WAIT 5 TO b", "rename", ["d.a", "d.b"]),
        ("SET STATEMENT a = (SELECT 1), b = 2 FOR DROP TABLE t", "drop", ["d.t"]),
        ("ALTER TABLE online RENAME COLUMN a TO b", "alter", ["d.online"]),
        ("TRUNCATE t", "truncate", ["d.t"]),
        ("TRUNCATE ignore", "truncate", ["d.ignore"]),
        ("TRUNCATE TABLE x.t", "truncate", ["x.t"]),
        ("CREATE UNIQUE INDEX i ON t (a)", "alter", ["d.t"]),
        ("DROP INDEX `PRIMARY` ON x.t", "alter", ["x.t"]),
        ("DROP DATABASE IF EXISTS shop", "drop database", ["shop."]),
        ("-- ALTER TABLE no\nALTER TABLE t # x\n ENGINE=InnoDB", "alter", ["d.t"]),
    ],
)  # fmt: skip
def test_which_tables_a_statement_touches(statement: str, kind: str, tables: list[str]) -> None:
    found = ddl.parse(statement, "d")
    assert found is not None
    assert (found.kind, [f"{schema}.{name}" for schema, name in found.tables]) == (kind, tables)


@pytest.mark.parametrize(
    "statement",
    ["", "FLUSH TABLES", "CREATE TEMPORARY TABLE t (a INT)", "CREATE USER x", "DROP VIEW v",
     "CREATE DATABASE d", "ALTER", "CREATE TABLE", "GRANT ALL ON *.* TO x", "'",
     "SET STATEMENT a = 1", "SET STATEMENT a = 1 FOR", "SET a = 1"],
)  # fmt: skip
def test_statements_that_touch_no_table(statement: str) -> None:
    assert ddl.parse(statement, "d") is None


@settings(max_examples=examples(150), deadline=None)
@given(
    st.text(max_size=80),
    st.sampled_from(["", "ALTER TABLE ", "DROP ", "RENAME TABLE a TO ", "INSERT "]),
)
def test_no_statement_stops_the_reader(text: str, start: str) -> None:
    ddl.parse(start + text, "d")
