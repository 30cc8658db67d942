"""`headwater doctor`."""

import os
import socket
import subprocess
import sys

import pytest

from .conftest import TIMEOUT_S


def findings(cli, code=0):
    found = {}
    for check in cli.json("doctor", code=code)["checks"]:
        found.setdefault(check["check"], []).append(check)
    return found


def test_a_sound_machine(offline):
    (offline.cwd / "headwater.toml").write_text('[broker]\nlisten = "127.0.0.1:0"\n')
    found = findings(offline)
    for check in ("program", "configuration", "disk sync", "broker.listen", "clock"):
        assert [finding["level"] for finding in found[check]] == ["ok"], found[check]
    assert "fdatasync of 4 KiB takes" in found["disk sync"][0]["found"]
    assert "is writable" in found["data directory"][0]["found"] or "memory" in str(found)


def test_it_shows_every_setting_with_its_source(offline):
    (offline.cwd / "headwater.toml").write_text('[broker]\nlisten = "127.0.0.1:0"\n')
    offline.environment["HEADWATER_BROKER__NODE_ID"] = "7"
    lines = [line.split(maxsplit=2) for line in offline("doctor").splitlines()]
    assert ["broker.listen", "127.0.0.1:0", "headwater.toml:2"] in lines
    assert ["broker.node_id", "7", "environment HEADWATER_BROKER__NODE_ID"] in lines
    assert ["broker.auto_create_topics", "true", "default"] in lines
    assert ["nothing", "is", "broken"] in lines


def test_mistakes_in_the_configuration(offline):
    (offline.cwd / "headwater.toml").write_text("[broker]\nlistn = 1\nnode_id = -1\n")
    wrong = findings(offline, code=1)["configuration"]
    assert [finding["level"] for finding in wrong] == ["broken", "broken"]
    assert "headwater.toml:2" in wrong[0]["found"]
    assert "2 broken" in offline("doctor", code=1)


def test_the_archive_is_tried(offline):
    directory = offline.cwd / "archive"
    settings = offline.cwd / "headwater.toml"
    settings.write_text(f'[broker]\nlisten = "127.0.0.1:0"\narchive = "file://{directory}"\n')
    assert "the first segment will make it" in findings(offline)["archive"][0]["found"]
    directory.mkdir()
    assert findings(offline)["archive"][0]["level"] == "ok"
    assert [path for path in directory.rglob("*") if path.is_file()] == []
    settings.write_text(
        '[broker]\nlisten = "127.0.0.1:0"\narchive = "s3://bucket/prefix"\n'
        'archive_endpoint = "http://127.0.0.1:1"\n'
    )
    offline.environment |= {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "s3cret"}
    (found,) = findings(offline, code=1)["archive"]
    assert "does not answer" in found["found"]
    assert "s3cret" not in str(found)


SLOW_THREADS = """
import asyncio, time
from headwater.cli.main import main
hand_over = asyncio.BaseEventLoop.call_soon_threadsafe
def slowly(*args, **options):
    try:
        return hand_over(*args, **options)
    finally:
        for _ in range(1000):
            time.sleep(0.001)  # each time it needs the interpreter again
asyncio.BaseEventLoop.call_soon_threadsafe = slowly
main()
"""


def test_threads_of_the_archives_client_that_are_not_done_are_no_crash(offline):
    """A result is here, and the thread that has brought it not yet back from the interpreter."""
    settings = {
        "HEADWATER_BROKER__LISTEN": "127.0.0.1:0",
        "HEADWATER_BROKER__ARCHIVE": "s3://bucket/prefix",
        "HEADWATER_BROKER__ARCHIVE_ENDPOINT": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
    }
    done = subprocess.run(
        [sys.executable, "-c", SLOW_THREADS, "doctor"],
        capture_output=True,
        text=True,
        env=offline.environment | settings,
        cwd=offline.cwd,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "does not answer" in done.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_data_directory_that_cannot_be_written(offline):
    (offline.cwd / "locked").mkdir(mode=0o500)
    offline.environment["HEADWATER_BROKER__DATA_DIR"] = "locked/data"
    assert findings(offline, code=1)["data directory"][0]["level"] == "broken"


def test_a_data_directory_that_is_a_file(offline):
    (offline.cwd / "file").write_text("")
    offline.environment["HEADWATER_BROKER__DATA_DIR"] = "file"
    (found,) = findings(offline, code=1)["data directory"]
    assert found["level"] == "broken"
    assert "broker.data_dir" in found["hint"]


def test_a_data_directory_in_memory(offline, tmp_path):
    if not os.path.ismount("/dev/shm"):
        pytest.skip("no tmpfs here")
    offline.environment["HEADWATER_BROKER__DATA_DIR"] = "/dev/shm/headwater-of-a-test"
    offline.environment["HEADWATER_BROKER__LISTEN"] = "127.0.0.1:0"
    (found,) = findings(offline)["data directory"]
    assert found["level"] == "warning"
    assert "tmpfs" in found["found"]
    assert not os.path.exists("/dev/shm/headwater-of-a-test")


@pytest.mark.parametrize(
    ("listen", "level", "shown"),
    [
        ("127.0.0.1:0", "info", "anybody on this machine can read and change everything"),
        ("0.0.0.0:0", "warning", "anybody can read and change everything"),
    ],
)
def test_an_open_broker_is_not_called_secure(offline, listen, level, shown):
    offline.environment["HEADWATER_BROKER__LISTEN"] = listen
    offline.environment["HEADWATER_BROKER__ALLOW_INSECURE_NETWORK"] = "true"
    (found,) = findings(offline)["security"]
    assert found["level"] == level
    assert found["found"].startswith(shown)
    assert "broker.authentication" in found["hint"]


def test_too_few_open_files(offline):
    offline.environment["HEADWATER_BROKER__MAX_OPEN_FILES"] = "2000000000"
    offline.environment["HEADWATER_BROKER__LISTEN"] = "127.0.0.1:0"
    (found,) = findings(offline, code=1)["open files"]
    assert "lower broker.max_open_files" in found["hint"]


def test_a_port_that_another_program_holds(offline):
    with socket.create_server(("127.0.0.1", 0)) as server:
        offline.environment["HEADWATER_BROKER__LISTEN"] = f"127.0.0.1:{server.getsockname()[1]}"
        (found,) = findings(offline, code=1)["broker.listen"]
    assert found["level"] == "broken"
    assert "another program holds the port" in found["hint"]


def test_a_broker_that_answers(cli):
    cli.environment["HEADWATER_BROKER__LISTEN"] = cli.bootstrap
    (found,) = findings(cli)["broker.bootstrap"]
    assert found["found"].startswith(f"a broker answers at {cli.bootstrap} and serves ")
    del cli.environment["HEADWATER_BROKER__BOOTSTRAP"]
    (found,) = findings(cli)["broker.listen"]
    assert found["found"].startswith(f"a broker answers at {cli.bootstrap} and serves ")


def test_a_bootstrap_that_does_not_answer(offline):
    offline.environment["HEADWATER_BROKER__BOOTSTRAP"] = "127.0.0.1:1"
    (found,) = findings(offline, code=1)["broker.bootstrap"]
    assert found["found"] == "127.0.0.1:1 does not answer: connection refused"


def test_sinks_and_pipelines_are_looked_at(offline):
    (offline.cwd / "headwater.toml").write_text(
        '[broker]\nlisten = "127.0.0.1:0"\n'
        '[sink.good]\nkind = "sqlite"\nurl = "sqlite:///cache.db"\n'
        '[sink.nowhere]\nkind = "sqlite"\nurl = "sqlite:///missing/cache.db"\n'
        '[sink.away]\nkind = "redis"\nurl = "redis://127.0.0.1:1/0"\n'
        '[pipeline.good]\nfile = "good.py"\n'
        '[pipeline.bad]\nfile = "bad.py"\n'
        '[pipeline.missing]\nfile = "missing.py"\n'
    )
    (offline.cwd / "good.py").write_text(
        "import headwater as hw\n\n\n@hw.pipeline\ndef good(flow: hw.Flow) -> None: ...\n"
    )
    (offline.cwd / "bad.py").write_text("def bad(flow): ...\n")
    found = {check: finding[0] for check, finding in findings(offline, code=1).items()}
    levels = {check: found[check]["level"] for check in found if check.startswith("sink")}
    assert levels == {"sink good": "ok", "sink nowhere": "broken", "sink away": "broken"}
    assert "mkdir -p" in found["sink nowhere"]["hint"]
    assert found["pipeline good"]["level"] == "ok"
    assert "has no pipeline" in found["pipeline bad"]["found"]
    assert "@hw.pipeline" in found["pipeline bad"]["hint"]
    assert "there is no file" in found["pipeline missing"]["found"]
    assert found["java"]["level"] == "ok"
    assert not (offline.cwd / "cache.db").exists()
