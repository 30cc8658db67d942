"""A capture of PostgreSQL as its users see it: doctor, run, status, failed tables, reset."""

import json
import signal
import subprocess
import time

import pytest
from cli.conftest import Cli, forked_commands, read_line, running_broker, stop, wait_until

__all__ = ["forked_commands"]


@pytest.fixture
def broker(tmp_path):
    with running_broker(tmp_path) as broker:
        yield broker


@pytest.fixture
def cli(broker, tmp_path, forked_commands):
    cli = Cli(broker[1]["listen"], tmp_path, forked_commands)
    yield cli
    cli.close()


def test_from_doctor_to_reset(cli, postgres, tmp_path):
    postgres.run("CREATE TABLE orders (id int PRIMARY KEY, item text)")
    postgres.run("INSERT INTO orders SELECT i, 'tea' FROM generate_series(1, 5000) i")
    postgres.run("CREATE TABLE plain (x int)")
    (tmp_path / "password").write_text("secret\n")
    source = postgres.url.replace(":secret@", "@")
    (tmp_path / "headwater.toml").write_text(
        f'[capture.shop]\nsource = "{source}"\npassword_file = "password"\n'
        'tables = ["public.*"]\nheartbeat_s = 30\n'
    )

    checks = [
        check
        for check in cli.json("doctor", code=None)["checks"]
        if check["check"] == "capture shop"
    ]
    assert [check["level"] for check in checks] == ["warning", "ok"]
    assert 'ALTER TABLE "public"."plain" REPLICA IDENTITY FULL' in checks[0]["hint"]

    process = cli.start("capture", "run", "shop", "--json")
    about = json.loads(read_line(process))
    assert about["source"] == source

    def tables():
        (shop,) = cli.json("capture", "status", "shop", code=None)
        return {table["table"]: table for table in shop["tables"]}

    def is_copied():
        snapshot = tables().get("public.orders", {}).get("snapshot")
        return snapshot is not None and snapshot["done"] and snapshot["rows"] == 5000

    wait_until(is_copied)
    assert "REPLICA IDENTITY FULL" in tables()["public.plain"]["failed"]["hint"]
    shown = cli("capture", "status", "shop", code=3)
    assert "failed: public.plain" in shown

    postgres.run("ALTER TABLE plain REPLICA IDENTITY FULL")
    postgres.run("INSERT INTO plain VALUES (1), (2)")
    output = cli("capture", "snapshot", "shop", "--table", "public.plain", "--wait")
    assert output == "copied 2 rows of public.plain\n"
    cli("capture", "status", "shop")

    # PostgreSQL ends the connection of the first process; that must not make it come back.
    second = cli.start("capture", "run", "shop", "--json")
    assert process.wait(60) == 1
    lines = process.stderr.read().decode().splitlines()[-2:]
    # By its broker, if it had just begun a transaction, else by the position.
    reasons = ("has taken over capture", "another process writes as")
    assert any(phrase in line for line in lines for phrase in reasons), lines
    postgres.run("INSERT INTO plain VALUES (3)")
    wait_until(
        lambda: b'"x":3' in cli.result("consume", "shop.public.plain", "-o", "start", "-e").stdout
    )
    assert stop(second) == 0
    assert cli.json("capture", "status", "shop", code=3)[0]["state"] == "stopped"  # at once

    checks = [
        check
        for check in cli.json("doctor", code=None)["checks"]
        if check["check"] == "capture shop"
    ]
    assert "goes back to its position" in checks[-1]["found"]
    _is_warned_of_the_retained_log(cli, postgres)
    cli("capture", "reset", "shop", "--yes")
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    assert postgres.run(slots) == []
    assert postgres.run("SELECT pubname FROM pg_publication") == []
    assert cli.json("capture", "status", "shop", code=3)[0]["state"] == "never ran"


def _is_warned_of_the_retained_log(cli, postgres):
    """The capture does not run, but the log that PostgreSQL retains for it grows."""
    stopped = cli.json("capture", "status", "shop", code=3)[0]["retained_bytes"]
    assert "warning:" not in cli("capture", "status", "shop", code=3)
    segment_bytes = 16 << 20
    try:
        postgres.run("ALTER SYSTEM SET max_slot_wal_keep_size = '80MB'")
        postgres.run("SELECT pg_reload_conf()")
        for _ in range(5):
            postgres.run("SELECT pg_logical_emit_message(true, 'x', 'y')")
            postgres.run("SELECT pg_switch_wal()")
        shown = cli("capture", "status", "shop", code=3)
        (status,) = cli.json("capture", "status", "shop", code=3)
        assert status["retained_bytes"] >= stopped + 4 * segment_bytes
        assert status["retained_left_bytes"] <= 2 * segment_bytes
        assert "warning: the database retains" in shown
        found = [check["found"] for check in cli.json("doctor", code=None)["checks"]]
        assert any("MiB of log for the capture" in finding for finding in found), found
    finally:
        postgres.run("ALTER SYSTEM RESET max_slot_wal_keep_size")
        postgres.run("SELECT pg_reload_conf()")


def test_a_rule_that_hides_nothing_is_refused_before_the_database_retains_its_log(
    cli, postgres, tmp_path
):
    postgres.run("CREATE TABLE users (id int PRIMARY KEY, phone text)")
    (tmp_path / "headwater.toml").write_text(
        f'[capture.shop]\nsource = "{postgres.url}"\n'
        '[capture.shop.columns]\n"public.users.phon" = "drop"\n'
    )
    assert "applies to nothing" in cli.error("capture", "run", "shop", code=2)
    assert (
        postgres.run("SELECT 1 FROM pg_replication_slots WHERE database = current_database()") == []
    )


def test_it_stops_at_once_whatever_hangs(cli, broker, postgres, tmp_path):
    """A broker that takes nothing, then a database that does not answer."""
    postgres.run("CREATE TABLE orders (id int PRIMARY KEY, item text)")
    (tmp_path / "headwater.toml").write_text(
        f'[capture.shop]\nsource = "{postgres.url}"\ntables = ["public.*"]\n'
    )

    def follow(number):
        process = cli.start("capture", "run", "shop", "--json")
        read_line(process)
        postgres.run(f"INSERT INTO orders VALUES ({number})")
        wait_until(lambda: f'"id":{number},' in consumed())
        return process

    def consumed():
        read = cli.result("consume", "shop.public.orders", "-o", "start", "-e", code=None)
        return read.stdout.decode()

    def stopped(process):
        began_s = time.monotonic()
        assert stop(process) == 0
        assert time.monotonic() - began_s < 12

    process = follow(1)
    broker[0].send_signal(signal.SIGSTOP)
    try:
        postgres.run(
            "INSERT INTO orders SELECT i, repeat('x', 200) FROM generate_series(3, 90000) i"
        )
        slots = "SELECT wait_event FROM pg_stat_activity WHERE backend_type = 'walsender'"
        wait_until(lambda: postgres.run(slots) == [("WalSenderWriteData",)])
        stopped(process)
    finally:
        broker[0].send_signal(signal.SIGCONT)

    process = follow(2)
    assert '"id":90000,' in consumed()  # what was cut short came whole
    backends = postgres.run(
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'headwater%%'"
    )
    subprocess.run(["kill", "-STOP", *(str(pid) for (pid,) in backends)], check=True)
    try:
        stopped(process)
    finally:
        subprocess.run(["kill", "-CONT", *(str(pid) for (pid,) in backends)], check=True)
