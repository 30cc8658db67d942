"""The audit log: what is written, what is counted instead, and what is not waited for."""

import asyncio
import json
from pathlib import Path

import pytest
from support.wire import LoneConnection

from headwater.broker.api.registry import RequestContext
from headwater.broker.security import audit
from headwater.broker.security.acls import Operation, ResourceType
from headwater.broker.security.audit import AuditLog, Change
from headwater.broker.security.authorizer import Principal
from headwater.protocol.error_codes import ErrorCode
from headwater.testing import FakeClock

ALICE = Principal("alice")


def context(principal=ALICE, client_id="app") -> RequestContext:
    return RequestContext(1, 1, client_id, "10.0.0.1", LoneConnection(), principal, "Fetch")


class Log:
    """An audit log whose events happen on an event loop, and its file."""

    def __init__(self, path: Path, **options) -> None:
        self.path = path
        self.clock = FakeClock()
        self.log = AuditLog(str(path), self.clock, **options)

    def deny(self, name="orders", times=1, **who) -> None:
        for _ in range(times):
            self.log.denied(context(**who), Operation.READ, ResourceType.TOPIC, name)

    def change(self, name="orders", error=ErrorCode.NONE, detail="", **who) -> None:
        made = Change(Operation.CREATE, "TOPIC", name, error, detail)
        self.log.changed(context(**who), made)

    def lines(self) -> list[dict[str, object]]:
        """All of it, written."""
        asyncio.run(self.log.close())
        return [json.loads(line) for line in self.path.read_text().splitlines()]


@pytest.fixture
def events(tmp_path):
    return Log(tmp_path / "audit.jsonl")


def test_a_denial_says_who_what_and_from_where(events):
    events.deny()
    (line,) = events.lines()
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "event": "denied",
        "principal": "User:alice",
        "host": "10.0.0.1",
        "client_id": "app",
        "api": "Fetch",
        "operation": "READ",
        "resource_type": "TOPIC",
        "resource": "orders",
        "allowed": False,
    }


def test_what_repeats_is_counted(events):
    events.deny(times=1000)
    events.deny("payments")
    first, second, rest = events.lines()
    assert (first["resource"], second["resource"]) == ("orders", "payments")
    assert "repeated" not in first
    assert (rest["resource"], rest["repeated"]) == ("orders", 999)


def test_a_minute_later_it_is_written_again(events):
    async def scenario():
        events.deny(times=3)
        events.clock.advance(audit.WINDOW_S + 1)
        await asyncio.sleep(0)
        events.deny()

    asyncio.run(scenario())
    assert [line.get("repeated") for line in events.lines()] == [None, 2, None]


def test_a_flood_of_different_names_writes_so_many_lines_and_no_more(events):
    for number in range(5 * audit.DISTINCT_PER_WINDOW):
        events.deny(f"topic-{number}")
    lines = events.lines()
    assert len(lines) == audit.DISTINCT_PER_WINDOW + 1
    assert lines[-1]["repeated"] == 4 * audit.DISTINCT_PER_WINDOW


def test_a_flood_hides_neither_others_nor_the_login_that_succeeds(events):
    for number in range(2 * audit.DISTINCT_PER_WINDOW):
        events.deny(f"topic-{number}")
        events.log.authentication(f"User:{number}", "10.0.0.1", "PLAIN", error="wrong password")
    events.deny("salaries", principal=Principal("bob"))
    events.log.authentication("User:admin", "10.0.0.1", "PLAIN")
    lines = events.lines()
    assert any(line.get("resource") == "salaries" for line in lines)
    assert any(line.get("principal") == "User:admin" and line["allowed"] for line in lines)
    unlisted = [line for line in lines if "not listed" in line.get("detail", "")]
    assert [(line["event"], line.get("principal"), line["repeated"]) for line in unlisted] == [
        ("denied", "User:alice", audit.DISTINCT_PER_WINDOW),
        ("authentication", None, audit.DISTINCT_PER_WINDOW),
    ]


def test_logins_are_written_and_failures_with_their_reason(events):
    events.log.authentication("User:alice", "10.0.0.1", "SCRAM-SHA-256")
    events.log.authentication("User:bob", "10.0.0.2", "PLAIN", error="wrong password")
    good, bad = events.lines()
    assert (good["event"], good["principal"], good["allowed"]) == (
        "authentication", "User:alice", True,
    )  # fmt: skip
    assert (bad["allowed"], bad["error"]) == (False, "wrong password")


def test_every_change_that_happened_is_written(events):
    for _ in range(3):
        events.change(detail="3 partitions")
    lines = events.lines()
    assert [line["detail"] for line in lines] == ["3 partitions"] * 3
    assert {line["event"] for line in lines} == {"change"}


def test_one_that_did_not_happen_is_written_once_and_a_denial_not_again(events):
    for _ in range(3):
        events.change(error=ErrorCode.TOPIC_ALREADY_EXISTS)
        events.change(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    first, rest = events.lines()
    assert first["error"] == "TOPIC_ALREADY_EXISTS"
    assert rest["repeated"] == 2


def test_a_client_cannot_forge_lines_or_make_them_long(events):
    events.deny("x\n{}" + "y" * 5000, client_id="a\nb" * 5000)
    (line,) = events.lines()
    assert len(line["resource"]) < 300
    assert len(line["client_id"]) < 300


def test_the_file_is_rotated_and_only_so_many_are_retained(tmp_path):
    events = Log(tmp_path / "audit.jsonl", max_file_bytes=1000)
    for number in range(100):
        events.change(f"topic-{number}")
        asyncio.run(events.log.close())
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["audit.jsonl", *(f"audit.jsonl.{n}" for n in range(1, audit.OLD_FILES + 1))]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert events.lines()[-1]["resource"] == "topic-99"
    newest_old = (tmp_path / "audit.jsonl.1").read_text().splitlines()
    oldest = (tmp_path / "audit.jsonl.4").read_text().splitlines()
    assert json.loads(newest_old[-1])["resource"] > json.loads(oldest[-1])["resource"]


def test_only_the_owner_reads_it(events):
    events.deny()
    events.lines()
    assert events.path.stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_written_is_dropped_and_counted(tmp_path):
    events = Log(tmp_path / "no such directory" / "audit.jsonl")
    events.change()
    asyncio.run(events.log.close())
    assert events.log.dropped == 1


def test_what_comes_faster_than_the_disk_is_dropped_and_counted(events, monkeypatch):
    monkeypatch.setattr(audit, "MAX_WAITING_LINES", 5)
    monkeypatch.setattr(events.log._workers, "submit", lambda job: None)  # a disk that hangs
    for _ in range(8):
        events.change()
    assert events.log.dropped == 3


def test_off_nothing_is_written():
    log = AuditLog(None, FakeClock())
    log.denied(context(), Operation.READ, ResourceType.TOPIC, "t")
    log.changed(context(), Change(Operation.CREATE, "TOPIC", "t", ErrorCode.NONE))
    log.authentication("User:a", "h", "PLAIN")
    asyncio.run(log.close())
    assert log.dropped == 0
