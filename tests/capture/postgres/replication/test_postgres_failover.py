"""A standby that was promoted takes over: with all that we have, or without."""

import psycopg2
import psycopg2.errors
import pytest
from support.capture.postgres_capture import Capture
from support.capture.postgres_server import Database, PostgresServer, StandbyServer
from support.wire import wait_until

from headwater.capture.contract import SourcePosition
from headwater.capture.postgres.connection import lsn_number
from headwater.errors import PositionLost

FAILOVER_SLOTS = "18"  # a version whose standbys synchronise slots


@pytest.fixture
def pair():
    """A primary, and a standby that synchronises its slots."""
    primary = PostgresServer(FAILOVER_SLOTS)
    standby = None
    try:
        primary.start()
        standby = StandbyServer(primary)
        standby.start()
        yield primary, standby
    finally:
        if standby is not None:
            standby.remove()
        primary.remove()


def test_a_failover_that_lost_transactions_is_noticed(pair):
    """The promoted standby lacks what we have, and has written past our LSN since."""
    primary, standby = pair
    old = Database(primary, "postgres")
    old.run("CREATE TABLE t (id int PRIMARY KEY)")
    first = Capture(old, name="shop")
    first.open()
    old.run("INSERT INTO t VALUES (1)")
    first.changes(1)
    _synchronise_slots(old, standby, first)
    shared = first.position
    with Database(standby, "postgres") as new:
        replayed = "SELECT pg_last_wal_replay_lsn()::text"
        wait_until(lambda: lsn_number(new.run(replayed)[0][0]) > shared["lsn"], 30, "all of it")
        new.run("ALTER SYSTEM SET primary_conninfo = ''")  # it falls behind
        new.run("SELECT pg_reload_conf()")
        receivers = "SELECT 1 FROM pg_stat_replication WHERE application_name = 'walreceiver'"
        wait_until(lambda: not old.run(receivers), 30, "the standby is cut off")
        old.run("INSERT INTO t VALUES (2)")
        first.changes(1)
        ahead = first.position
        (advice,) = [advised for advised in first.source.advice() if "failover" in advised.what]
        assert "synchronized_standby_slots = 'standby'" in advice.hint
        first.source.close()
        old.close()
        primary.stop()
        standby.promote()
        new.run("INSERT INTO t SELECT generate_series(100, 4000)")
        [(end,)] = new.run("SELECT pg_current_wal_lsn()::text")
        assert lsn_number(end) > ahead["lsn"]

        again = Capture(new, name="shop")
        with pytest.raises(PositionLost, match="timeline 2") as raised:
            again.source.check_position(SourcePosition(ahead))
        assert "capture reset shop" in raised.value.hint
        with pytest.raises(PositionLost, match="timeline 2"):
            again.open(SourcePosition(ahead))
        # What both have had is no reason to stop, and the stream goes on with the new history.
        again.open(SourcePosition(shared))
        assert [change.after["id"] for change in again.changes(3901)] == [*range(100, 4001)]
        assert again.position["timeline"] == 2
        again.source.close()


def test_another_cluster_is_not_taken_for_ours(postgres):
    capture = Capture(postgres)
    log_position = capture.open()
    capture.source.close()
    with pytest.raises(PositionLost, match="another PostgreSQL cluster"):
        Capture(postgres).open(SourcePosition({**log_position, "system": "1"}))
    with pytest.raises(PositionLost, match="did not begin on ours"):
        _on_a_timeline_that_never_was(postgres, log_position)


def _on_a_timeline_that_never_was(postgres, log_position):
    """The first timeline has no history file: nothing was before it."""
    capture = Capture(postgres)
    try:
        capture.open(SourcePosition({**log_position, "timeline": 7}))
    finally:
        capture.source.close()


def _synchronise_slots(old: Database, standby: StandbyServer, capture: Capture) -> None:
    """Until the standby has the slot for good; what it lacks for that comes with new log."""
    with Database(standby, "postgres") as new:

        def is_synchronised() -> bool:
            old.run("SELECT pg_log_standby_snapshot(), pg_switch_wal()")
            capture.source.acknowledge(_next_position(capture))
            try:
                new.run("SELECT pg_sync_replication_slots()")
            except psycopg2.errors.ObjectNotInPrerequisiteState:  # it has not received that much
                return False
            return bool(
                new.run("SELECT 1 FROM pg_replication_slots WHERE NOT temporary AND synced")
            )

        wait_until(is_synchronised, 60, "the slot on the standby")


def _next_position(capture: Capture):
    before = capture.position
    capture.until(lambda _: capture.position != before)
    return capture.position
