"""Drivers that write to MariaDB and MySQL are killed, and so is the server; also between the steps
of changes that commit by themselves.
"""

import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from support.capture.mariadb_server import DATABASES, MariaDbServer
from support.capture.mysql_server import KINDS, server_of
from support.sinks.sink_contract import ID, ID_N
from support.sinks.sink_killing import KillContract
from support.sinks.sink_rows import batch, comparable, position, rows_of, table
from test_mysql_sink_contract import MariaDb

from headwater.errors import StoreUnreachable
from headwater.sinks.contract import Target
from headwater.sinks.mysql.session import Session


@pytest.fixture(scope="module", params=KINDS)
def durable_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MariaDbServer]:
    """A server that syncs its commits, as by default."""
    settings = {"innodb_flush_log_at_trx_commit": "1", "skip_log_bin": "1"}
    server = server_of(request.param, tmp_path_factory.mktemp("durable"), settings)
    try:
        server.start()
        yield server
    finally:
        server.close()


class KilledMariaDb(MariaDb):
    can_restart = True

    def restart(self):
        """InnoDB of MariaDB 10.11 may refuse its own log after a kill between two renames (it lacks
        "FILE_CREATE, FILE_DELETE or FILE_MODIFY before FILE_CHECKPOINT"): that shows nothing of
        ours.
        """
        self.server.stop(signal.SIGKILL)
        try:
            self.server.start()
        except AssertionError as error:
            if "Data structure corruption" not in str(error):
                raise
            self.server.renew()
            pytest.skip("the server has not survived its kill: its own log is corrupt")


@pytest.fixture
def backend(durable_server) -> KilledMariaDb:
    backend = KilledMariaDb(durable_server, f"killed{next(DATABASES)}")
    durable_server.execute(f"CREATE DATABASE {backend.database}")
    backend.allow()
    return backend


class TestMariaDbKills(KillContract):
    drivers = ("pymysql",)

    @pytest.fixture
    def backend(self, backend):
        return backend

    def test_a_server_that_is_restarted(self, backend):
        store = backend.store(Target("shop", "orders", ("id",)))
        with store.writer(1, ID) as writer:
            writer.apply(batch(0, table(ID, [{"id": 1, "v": "a"}])))
            backend.restart()
            with pytest.raises(Exception, match="no answer"):
                writer.apply(batch(1, table(ID, [{"id": 2, "v": "b"}])))
        with store.writer(1, ID) as writer:
            assert writer.position == position(0)
            writer.apply(batch(1, table(ID, [{"id": 2, "v": "b"}])))
        assert rows_of(store) == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]


class Dies(Exception):
    """In place of a kill: the process does nothing more, and its connection ends."""


@pytest.fixture
def dying(monkeypatch):
    """Lets a process die in front of one of its statements."""

    class Dying:
        def __init__(self):
            self.at, self.count, self.is_dead = None, 0, False

        def step(self):
            if self.count == self.at:
                self.is_dead = True
            if self.is_dead:
                raise Dies
            self.count += 1

        def reset(self, at):
            self.at, self.count, self.is_dead = at, 0, False

    state = Dying()

    def around(original):
        def run(self, *arguments):
            state.step()
            return original(self, *arguments)

        return run

    for name in ("run", "change", "send", "ask"):
        monkeypatch.setattr(Session, name, around(getattr(Session, name)))
    return state


def _make(store):
    store.writer(1, ID).close()


def _dies(dying, at, work, *arguments) -> bool:
    dying.reset(at)
    try:
        work(*arguments)
        return False
    except Dies:
        return True
    finally:
        dying.reset(None)


ROWS = {1: [{"id": 1, "v": "one"}], 2: [{"id": 1, "v": "two"}]}


def _filled(backend, name, versions):
    store = backend.store(Target("shop", name, ("id",)))
    for version in versions:
        with store.writer(version, ID) as writer:
            writer.apply(batch(0, table(ID, ROWS[version]), query=str(version)))
    return store


def test_a_crash_at_any_step_of_making_a_table(backend, dying):
    kills = 0
    for at in range(1000):
        store = backend.store(Target("shop", f"made{at}", ("id",)))
        if not _dies(dying, at, _make, store):
            break
        kills += 1
        with store.writer(1, ID_N) as writer:  # who comes next may have other columns
            writer.apply(batch(0, table(ID_N, [{"id": 1, "v": "a", "n": 2}])))
        assert rows_of(store) == [{"id": 1, "v": "a", "n": 2}]
        assert [version.is_live for version in store.versions()] == [True]
    assert kills > 8


def test_a_crash_at_any_step_of_promote(backend, dying):
    """Readers find one version or the other under the live name, whole, and so does everybody."""
    store, kills, live = _filled(backend, "orders", [1, 2]), 0, 1
    for at in range(1000):
        wanted = 3 - live
        is_dead = _dies(dying, at, store.promote, wanted)
        kills += is_dead
        [found] = [version.number for version in store.versions() if version.is_live]
        assert backend.live_rows("orders") == ROWS[found]
        assert found == wanted or is_dead
        for version in (1, 2):
            assert rows_of(store, version) == ROWS[version]
        live = found
        if not is_dead:
            break
    assert kills > 8


def test_a_server_killed_while_versions_are_swapped(backend):
    store, rng, problems, swaps = _filled(backend, "orders", [1, 2]), random.Random(4), [], [0]

    def swap():
        try:
            while True:
                store.promote(2 - swaps[0] % 2)
                swaps[0] += 1
        except StoreUnreachable:
            return
        except BaseException as error:
            problems.append(error)

    for _ in range(4):
        thread = threading.Thread(target=swap)
        thread.start()
        time.sleep(rng.uniform(0, 0.4))
        backend.restart()
        thread.join()
        assert not problems
        store.writer(1, ID).close()
        [live] = [version.number for version in store.versions() if version.is_live]
        assert backend.live_rows("orders") == ROWS[live]
        for version in (1, 2):
            assert rows_of(store, version) == ROWS[version]
    assert swaps[0]


def test_a_rename_that_stopped_half_way_is_finished(backend):
    """As servers may leave it whose RENAME of two tables is not atomic."""
    store = _filled(backend, "orders", [1, 2])
    backend.ask("UPDATE __headwater_positions SET is_live = (version = 2)")
    backend.ask("RENAME TABLE orders TO orders__v1")
    assert [version.is_live for version in store.versions()] == [False, False]
    with store.writer(1, ID) as writer:
        assert writer.position.query == "1"
    assert backend.live_rows("orders") == ROWS[2]
    assert [version.is_live for version in store.versions()] == [False, True]
    store.promote(1)
    assert backend.live_rows("orders") == ROWS[1]


def test_a_crash_at_any_step_of_drop(backend, dying):
    kills = 0
    for at in range(1000):
        store = _filled(backend, f"dropped{at}", [1, 2])
        is_dead = _dies(dying, at, store.drop, 2)
        kills += is_dead
        if [version.number for version in store.versions()] == [1, 2]:
            assert rows_of(store, 2) == ROWS[2]  # nothing has happened yet
            store.drop(2)
        assert [version.number for version in store.versions()] == [1]
        with store.writer(2, ID) as writer:
            assert writer.position is None, "it goes on with what was dropped"
            assert rows_of(store, 2) == []
        if not is_dead:
            break
    assert kills > 4


def test_a_crash_at_any_step_of_a_batch_with_new_columns(backend, dying):
    kills = 0
    store = _filled(backend, "orders", [1])
    expected = [*ROWS[1]]
    fields = ID
    for number in range(1, 1000):
        fields = fields.append(_column(number))
        row = {"id": number + 1, "v": "x", f"n{number}": number}
        made = batch(number, table(fields, [row]), query="1")
        writer = store.writer(1, ID)
        is_dead = _dies(dying, number - 1, writer.apply, made)
        writer.close()
        kills += is_dead
        with store.writer(1, ID) as writer:
            writer.apply(made)
        expected.append(row)
        if not is_dead:
            break
    assert kills > 8
    full = [{name: row.get(name) for name in fields.names} for row in expected]
    assert rows_of(store) == comparable(full)


def _column(number):
    return ID_N.field("n").with_name(f"n{number}")
