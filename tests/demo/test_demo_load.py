"""The demo's own PostgreSQL, its directory, and the load, with a real broker."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psycopg2
import pytest
from tiers import long

from headwater import config
from headwater.demo import project
from headwater.demo.load import open_shop
from headwater.demo.shop import CUSTOMERS, FIRST_ORDERS, Shop, products
from headwater.errors import ConfigError, NotReady

TIMEOUT_S = 60.0


def wait_until(condition):
    until_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < until_s, "it did not come true in time"
        time.sleep(0.05)


@pytest.fixture
def directory():
    """One that `nobody` can reach, as pytest's own cannot be."""
    path = Path(tempfile.mkdtemp(prefix="headwater-demo-test-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def postgres(directory):
    server = project.make(directory)
    project.start(server, lambda: False)
    yield server
    server.stop()


def ask(server, statement, database="shop"):
    connection = psycopg2.connect(server.url(database))
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()
    finally:
        connection.close()


def child(directory, *arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADWATER_")}
    return subprocess.Popen(
        [sys.executable, "-m", *arguments], cwd=directory, stdout=subprocess.PIPE, env=environment
    )


@pytest.fixture
def broker(directory, postgres):
    process = child(directory, "headwater.cli.main", "broker", "--json")
    yield json.loads(process.stdout.readline())["listen"]
    process.terminate()
    process.wait(TIMEOUT_S)
    process.stdout.close()


def test_the_shop_is_there_and_only_with_its_password(directory, postgres):
    assert ask(postgres, "SELECT count(*) FROM customers") == [(CUSTOMERS,)]
    assert ask(postgres, "SELECT count(*) FROM products") == [(len(products()),)]
    assert ask(postgres, "SELECT count(*) FROM orders") == [(FIRST_ORDERS,)]
    assert ask(postgres, "SHOW wal_level") == [("logical",)]
    with pytest.raises(psycopg2.OperationalError):
        psycopg2.connect(postgres.url("shop").replace("@", "x@"))
    assert (directory / project.PASSWORD).stat().st_mode & 0o077 == 0
    said = subprocess.run(
        [directory / "psql", "-At", "warehouse", "-c", "SELECT current_database()"],
        check=True, capture_output=True, text=True, cwd="/",
    ).stdout  # fmt: skip
    assert said == "warehouse\n"


def test_a_server_that_answers_has_its_tables(directory):
    """A capture that starts at the same time waits for it, and does not end with an error."""
    server, as_configured = project.make(directory), project.make(directory)
    answers, is_over = [], threading.Event()

    def connect() -> None:
        while not is_over.is_set():
            try:
                answers.append(ask(as_configured, "SELECT count(*) FROM orders"))
            except (OSError, psycopg2.Error) as error:  # OSError: there is no password yet
                answers.append(str(error))

    client = threading.Thread(target=connect)
    client.start()
    try:
        project.start(server, lambda: False)
        wait_until(lambda: answers[-1:] == [[(FIRST_ORDERS,)]])
    finally:
        is_over.set()
        client.join()
        server.stop()
    assert not [text for text in answers if "does not exist" in str(text)]


def test_a_shop_that_is_there_goes_on(directory, postgres):
    postgres.stop()
    again = project.make(directory)
    project.start(again, lambda: False)
    try:
        assert again.port == postgres.port
        assert ask(again, "SELECT count(*) FROM orders") == [(FIRST_ORDERS,)]
    finally:
        again.stop()


def test_two_servers_cannot_share_a_directory(directory, postgres):
    with pytest.raises(NotReady, match="PostgreSQL does not start"):
        project.make(directory).start(lambda: False)


def test_a_directory_of_another_project_is_left_alone(directory):
    (directory / "headwater.toml").write_text('[broker]\nlisten = "127.0.0.1:9092"\n')
    with pytest.raises(ConfigError, match="is of another project"):
        project.make(directory)
    assert os.listdir(directory) == ["headwater.toml"]


def test_the_files_are_those_of_the_example_with_free_addresses(directory):
    project.make(directory)
    copied = config.load(path=str(directory / "headwater.toml"), environ={})
    example = config.load(path=str(project.shop_files() / "headwater.toml"), environ={})
    assert set(copied.pipelines) == set(example.pipelines)
    assert copied.captures["shop"].source.reveal().startswith("postgresql://shop@127.0.0.1:")
    for pipeline in copied.pipelines.values():
        assert (directory / pipeline.file).read_text() == (
            project.shop_files() / pipeline.file
        ).read_text()


def test_a_port_that_is_taken_is_not_chosen():
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert project.free_port(port) not in (0, port)
    assert project.free_port(port) == port


@long
def test_the_load_runs_through_a_crash_of_the_database(directory, postgres, broker):
    load = child(directory, "headwater.demo.load", "--rate", "200")
    orders = "SELECT max(id) FROM orders"
    wait_until(lambda: ask(postgres, orders)[0][0] > FIRST_ORDERS + 20)
    os.kill(postgres.pid, signal.SIGKILL)
    wait_until(lambda: not postgres.is_running)
    wait_until(lambda: _starts(postgres))
    ((before,),) = ask(postgres, orders)
    wait_until(lambda: ask(postgres, orders)[0][0] > before + 20)
    load.terminate()
    said, _ = load.communicate(timeout=TIMEOUT_S)
    assert load.returncode == 0
    did = json.loads(said)
    assert did["transactions"] > 100
    assert did["searches"] > did["clicks"] > 0
    ended = "SELECT count(*), max(id) FROM orders"
    assert ask(postgres, ended) == ask(postgres, ended)
    totals = (
        "SELECT count(*) FROM orders o WHERE total <>"
        " (SELECT sum(quantity * price) FROM items WHERE order_id = o.id)"
    )
    assert ask(postgres, totals) == [(0,)]


def _starts(postgres):
    """The postmaster's children need a moment to notice that it has ended."""
    try:
        postgres.start(lambda: False)
    except NotReady:
        return False
    return True


def test_the_load_takes_the_shop_as_its_database_has_it(postgres):
    connection = psycopg2.connect(postgres.url("shop"))
    try:
        shop, fresh = open_shop(connection), Shop()
    finally:
        connection.close()
    fresh.beginning()
    assert shop.next_order == fresh.next_order
    assert shop.open_orders == fresh.open_orders
    assert (shop.customers, shop.prices) == (fresh.customers, fresh.prices)
