"""Slots, rights, breaks: what goes wrong with PostgreSQL is reported with the fix."""

import os
import signal
import threading
import time

import pytest
from support.capture.postgres_capture import Capture, capturing
from support.capture.postgres_server import PostgresServer

from headwater.capture.contract import PositionAdvanced, SourcePosition, Table
from headwater.capture.postgres import PostgresSource, connection
from headwater.capture.postgres.replication import slot, stream
from headwater.capture.settings import CaptureSettings
from headwater.errors import ConfigError, PositionLost, SourceRefused, SourceUnreachable
from headwater.settings import Secret


def source(url: str, **settings) -> PostgresSource:
    return PostgresSource(CaptureSettings(**{"name": "shop", "source": Secret(url), **settings}))


def test_nothing_is_wrong_with_a_good_database(postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    good = source(postgres.url)
    assert good.check() == []
    assert good.database == postgres.name
    assert not postgres.run("SELECT 1 FROM pg_publication")  # it changed nothing


@pytest.mark.parametrize(
    ("change", "kind", "text", "hint"),
    [
        (("secret", "wrong-pass"), SourceRefused, "refuses the password", "ALTER ROLE"),
        (("/test_", "/nodb_"), SourceRefused, "no such database", "CREATE DATABASE"),
        (("postgres:secret", "nobody:secret"), SourceRefused, "refuses the password", "ALTER ROLE"),
    ],
)
def test_refused_connections_are_explained(postgres, change, kind, text, hint):
    bad = source(postgres.url.replace(*change))
    (error,) = bad.check()
    assert isinstance(error, kind)
    assert text in str(error)
    assert hint in error.hint
    assert "wrong-pass" not in str(error) + error.hint
    with pytest.raises(kind, match=text):
        bad.open(None, {})


def test_no_answer_and_no_address(postgres_server):
    (error,) = source("postgresql://u:geheim@127.0.0.1:1/x").check()
    assert isinstance(error, SourceUnreachable)
    assert "geheim" not in str(error)
    with pytest.raises(ConfigError) as raised:
        source("postgresql://u:geheim@127.0.0.1:port:99/x?%zz")
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize("way", [0, 1])
def test_missing_rights_come_with_the_sql_that_grants_them(postgres, way):
    role = f"r_{postgres.name}"
    postgres.run(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    postgres.run("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE bare (a int)")
    postgres.run(f"CREATE ROLE o_{role}; ALTER TABLE t OWNER TO o_{role}")
    url = postgres.server.url(postgres.name, role, "x")
    try:
        problems = {str(error): error.hint for error in source(url).check()}
        assert (
            problems[f"the role may not replicate: {role}"] == f'ALTER ROLE "{role}" REPLICATION;'
        )
        grant = problems[f"the role may not create the publication: {role}"]
        assert grant == f'GRANT CREATE ON DATABASE "{postgres.name}" TO "{role}";'
        assert "REPLICA IDENTITY FULL" in next(
            hint for text, hint in problems.items() if "public.bare has no replica identity" in text
        )
        assert "GRANT SELECT" in problems[f"the role may not read the table public.t: {role}"]
        owner = next(hint for text, hint in problems.items() if "only their owner" in text)

        # What the hints say is enough.
        postgres.run(f'ALTER ROLE "{role}" REPLICATION; {grant}; GRANT SELECT ON t TO {role}')
        poor = source(url, exclude=("*.bare",))
        as_superuser = owner.partition("(or as a superuser: ")[2].removesuffix(")")
        postgres.run(as_superuser if way else owner.partition("(")[0])
        poor.open(None, {})
        assert [table.id for table in poor.tables()] == ["public.t"]
        assert poor.check() == []
        poor.remove()
        poor.close()
    finally:
        postgres.run(f"DROP PUBLICATION IF EXISTS headwater_shop; DROP OWNED BY {role}")
        postgres.run(f"DROP OWNED BY o_{role}; DROP ROLE {role}, o_{role}")


@pytest.mark.parametrize("what", ["ALL TABLES", "TABLES IN SCHEMA public", "TABLE t, later"])
def test_a_publication_that_an_administrator_made_needs_no_right_on_the_tables(postgres, what):
    role = f"r_{postgres.name}"
    postgres.run("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE later (id int PRIMARY KEY)")
    postgres.run(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'")
    postgres.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    poor = source(postgres.server.url(postgres.name, role, "x"))
    try:
        (refused,) = [error for error in poor.check() if "publish none" in str(error)]
        assert refused.hint.startswith("as a superuser: CREATE PUBLICATION")  # who owns the tables
        postgres.run(
            f"CREATE PUBLICATION headwater_shop FOR {what} WITH (publish_via_partition_root = true)"
        )
        assert poor.check() == []
        poor.open(None, {})
        assert [table.id for table in poor.tables()] == ["public.later", "public.t"]
        poor.remove()
        assert postgres.run("SELECT 1 FROM pg_publication")  # it was not the capture's
    finally:
        poor.close()
        postgres.run(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_server_that_is_not_set_up():
    server = PostgresServer(
        settings={"wal_level": "replica", "max_replication_slots": "0", "max_wal_senders": "0"}
    )
    try:
        server.start()
        hints = [error.hint for error in source(server.url("postgres")).check()]
        assert [name for name in ("wal_level", "max_replication_slots", "max_wal_senders")
                if any(f"ALTER SYSTEM SET {name}" in hint for hint in hints)] == [
            "wal_level", "max_replication_slots", "max_wal_senders",
        ]  # fmt: skip
        with pytest.raises(SourceRefused):
            source(server.url("postgres")).open(None, {})
    finally:
        server.remove()


def test_a_lost_slot_is_explained(postgres):
    with capturing(postgres) as capture:
        at = capture.position
        name = capture.settings.name
        assert capture.source.check_position(SourcePosition(at))
    postgres.run("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                 "WHERE database = current_database()")  # fmt: skip
    with pytest.raises(PositionLost, match="slot is dropped"):
        Capture(postgres).source.check_position(SourcePosition(at))
    with pytest.raises(PositionLost, match="slot is dropped") as raised:
        Capture(postgres).open(SourcePosition(at))
    assert f"headwater capture reset {name}" in raised.value.hint


def test_a_publication_that_was_dropped(postgres):
    with capturing(postgres) as capture:
        at = capture.position
    postgres.run(f"DROP PUBLICATION headwater_{postgres.name}")
    with pytest.raises(PositionLost, match="publication is dropped"):
        Capture(postgres).open(SourcePosition(at))


def test_a_slot_that_moved_on_without_us(postgres):
    with capturing(postgres) as capture:
        at = capture.position
    postgres.run("CREATE TABLE t ()")
    postgres.run("SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) "
                 "FROM pg_replication_slots WHERE database = current_database()")  # fmt: skip
    with pytest.raises(PositionLost, match="moved on"):
        Capture(postgres).open(SourcePosition(at))


def test_a_database_that_went_back_in_time(postgres):
    with capturing(postgres) as capture:
        later = {"lsn": capture.position["lsn"] + (1 << 40)}
    with pytest.raises(PositionLost, match="back in time"):
        Capture(postgres).open(SourcePosition(later))


def test_an_old_process_is_ended(postgres, monkeypatch):
    monkeypatch.setattr(slot, "_HOLDER_PATIENCE_S", 0.3)
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    with capturing(postgres) as old:
        postgres.run("INSERT INTO t VALUES (1)")
        old.transactions(1)
        new = Capture(postgres)
        new.open(SourcePosition(old.position))
        with pytest.raises(SourceUnreachable):
            old.transactions(1)
        postgres.run("INSERT INTO t VALUES (2)")
        assert new.changes(1)[0].after == {"id": 2}
        new.source.close()


def test_opening_twice_does_no_harm(postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    first = Capture(postgres)
    log_position = first.source.open(None, {})
    postgres.run("INSERT INTO t VALUES (1)")
    first.source.close()
    second = Capture(postgres)
    assert second.open() == log_position
    assert second.changes(1)[0].after == {"id": 1}
    second.source.close()


def test_names_and_removal(postgres):
    capture = Capture(postgres, name="My-Shop", options={"publication": "Pub x"})
    capture.open()
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    assert postgres.run(slots) == [("headwater_my_shop",)]
    assert postgres.run("SELECT pubname FROM pg_publication") == [("Pub x",)]
    capture.source.remove()
    capture.source.remove()
    assert postgres.run(slots) == postgres.run("SELECT pubname FROM pg_publication") == []
    capture.source.close()


def test_a_publication_that_was_there_before(postgres):
    postgres.run(
        "CREATE TABLE mine (id int PRIMARY KEY, a int); CREATE TABLE other (id int PRIMARY KEY)"
    )
    postgres.run("CREATE PUBLICATION p FOR TABLE mine (id), other WITH (publish = 'insert')")
    mine = Capture(postgres, tables=("*.mine",), options={"publication": "p"})
    all_of_it, columns = mine.source.check()
    assert "does not publish everything" in str(all_of_it)
    assert "leaves out rows or columns of public.mine" in str(columns)
    postgres.run(all_of_it.hint)
    postgres.run(columns.hint.partition(" and ")[0])
    assert mine.source.check() == []
    mine.open()
    postgres.transaction("INSERT INTO other VALUES (1)", "INSERT INTO mine VALUES (1, 2)")
    (change,) = mine.changes(1)
    assert (change.after, change.ordinal) == ({"id": 1, "a": 2}, 1)
    mine.source.remove()
    published = "SELECT tablename FROM pg_publication_tables WHERE pubname = 'p' ORDER BY 1"
    assert postgres.run(published) == [("mine",), ("other",)]
    mine.source.close()


def test_crashes_of_the_database_lose_and_repeat_nothing():
    server = PostgresServer()
    try:
        server.start()
        with server.database() as database:
            database.run("CREATE TABLE t (id int PRIMARY KEY)")
            capture = Capture(database)
            capture.open()
            seen = []
            for first in range(0, 40, 10):
                database.run("INSERT INTO t SELECT generate_series(%s, %s)", first, first + 9)
                seen += capture.changes(10)
                if first % 20:
                    capture.source.acknowledge(capture.position)
                    next(capture.stream)
                database.close()
                server.stop(signal.SIGQUIT)
                with pytest.raises(SourceUnreachable):
                    capture.transactions(1)
                capture.source.close()
                at = SourcePosition(capture.position)
                with pytest.raises(SourceUnreachable):
                    Capture(database).open(at, {})
                server.start()
                capture = Capture(database)
                capture.open(at)
            assert [change.after["id"] for change in seen] == list(range(40))
            _shut_down_while_following(server, database, capture)
            _lose_the_slot(database, at)
    finally:
        server.remove()


def _shut_down_while_following(server, database, capture):
    """A clean stop of PostgreSQL waits until the log is acknowledged to its end. It must not wait
    long for us, though nothing of it is a change of ours.
    """
    database.run("CREATE SEQUENCE noise; SELECT nextval('noise')")
    database.close()
    stop = threading.Thread(target=server.stop)
    started = time.monotonic()
    stop.start()
    with pytest.raises(SourceUnreachable):
        _acknowledge_all(capture)
    stop.join()
    capture.source.close()
    assert time.monotonic() - started < 10
    server.settings["max_slot_wal_keep_size"] = "1MB"
    server.start()


def _lose_the_slot(database, at):
    """PostgreSQL retains no more log than configured."""
    for _ in range(3):
        database.run("SELECT pg_switch_wal()")
        database.run("CREATE TABLE filler (); DROP TABLE filler")
    database.run("CHECKPOINT")
    capture = Capture(database)
    with pytest.raises(PositionLost, match="removed log") as raised:
        capture.open(at)
    assert "capture reset" in raised.value.hint
    assert [type(error) for error in capture.source.check()] == [PositionLost]
    capture.open()  # without a position: from now on, with a new slot
    database.run("INSERT INTO t VALUES (100)")
    assert capture.changes(1)[0].after == {"id": 100}
    capture.source.close()


def _acknowledge_all(capture):
    for event in capture.stream:
        if isinstance(event, PositionAdvanced):
            capture.source.acknowledge(event.at)


def test_the_slot_never_moves_in_front_of_what_was_acknowledged(postgres):
    """Of a quiet database, whose log goes on with what is not ours."""
    postgres.run("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int)")
    quiet = source(postgres.url, tables=("public.t",))
    try:
        start = SourcePosition(quiet.open(None, {}))
        quiet.is_awaited = True  # so that it reports its position and asks all the time
        stored = start.at["lsn"]
        deadline_s = time.monotonic() + 10
        passed = 0
        for event in quiet.changes(start):
            assert _confirmed(postgres) <= stored + 1
            postgres.run("INSERT INTO other VALUES (1)")
            if isinstance(event, PositionAdvanced) and event.at["lsn"] > stored:
                passed += 1
                if passed == 3:  # all of it was stored, and the stream is idle again
                    stored = event.at["lsn"]
                    quiet.acknowledge(event.at)
            if passed > 5 and _confirmed(postgres) == stored + 1:
                break
            assert time.monotonic() < deadline_s
        quiet.close()
        again = source(postgres.url, tables=("public.t",))
        again.open(SourcePosition({"lsn": stored}), {})
        again.close()
    finally:
        quiet.close()


def _confirmed(postgres) -> int:
    rows = postgres.run("SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots")
    return int(rows[0][0])


def test_a_database_that_falls_silent_is_unreachable(postgres, monkeypatch):
    monkeypatch.setattr(stream, "_KEEPALIVE_S", 0.2)
    monkeypatch.setattr(stream, "_SILENCE_S", 1.5)
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    with capturing(postgres) as capture:
        until_s = time.monotonic() + 2.5  # a quiet one answers
        capture.until(lambda _: time.monotonic() > until_s)
        (holder,) = postgres.run(
            "SELECT active_pid FROM pg_replication_slots WHERE database = current_database()"
        )[0]
        os.kill(holder, signal.SIGSTOP)
        try:
            with pytest.raises(SourceUnreachable, match="does not answer"):
                capture.transactions(1)
        finally:
            os.kill(holder, signal.SIGCONT)


def test_a_stream_that_has_to_wait_stays_connected(postgres):
    """PostgreSQL ends a stream from which it hears nothing, however long the topics take."""
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    postgres.run(f"ALTER DATABASE {postgres.name} SET wal_sender_timeout = '1s'")
    with capturing(postgres) as capture:
        postgres.run("INSERT INTO t VALUES (1)")
        assert len(capture.changes(1)) == 1
        until_s = time.monotonic() + 3
        while time.monotonic() < until_s:
            capture.source.stay_connected()
            time.sleep(0.05)
        postgres.run("INSERT INTO t VALUES (2)")
        assert len(capture.changes(1)) == 1


def test_a_question_that_is_never_answered_ends(postgres, monkeypatch):
    monkeypatch.setattr(connection, "ANSWER_S", 1.0)
    with capturing(postgres) as capture:
        (backend,) = postgres.run(
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'headwater%'"
            " AND datname = current_database() AND backend_type = 'client backend'"
        )[0]
        os.kill(backend, signal.SIGSTOP)
        try:
            with pytest.raises(SourceUnreachable):
                capture.source.tables()
        finally:
            os.kill(backend, signal.SIGCONT)


def test_reading_ends_with_the_source(postgres):
    """Also a read that waits for a lock, or for a database that has stopped."""
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    failures = []

    def read() -> None:
        try:
            capture.source.read_chunk(table, None, 10)
        except SourceUnreachable as error:
            failures.append(error)

    with capturing(postgres) as capture:
        table = capture.table("t")
        other = postgres.connect()
        with other, other.cursor() as cursor:
            cursor.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            thread = threading.Thread(target=read)
            thread.start()
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            while postgres.run(waiting) == [(0,)]:
                time.sleep(0.02)
            capture.source.close()
            thread.join(60)
        other.close()
    assert failures


def test_a_table_that_could_never_be_followed_is_not_reported_as_dropped(postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)")
    first = source(postgres.url, tables=("public.t",))
    log_position = first.open(None, {})
    first.close()
    never = {"public.other": Table("public", "other", (), ())}
    again = source(postgres.url)
    try:
        again.open(SourcePosition(log_position), never)
        assert "public.other" in [table.id for table in again.tables()]
    finally:
        again.close()
