"""`headwater pipeline …`, `verify`, `why` and `wait`: from a database to a derived store."""

import json
import signal
import sqlite3
import subprocess

import pytest
from tiers import long

from .conftest import COMMAND, read_line, stop, unique, wait_until

STARTS_S = 120.0


class Shop:
    """A captured database, a pipeline and its store; each of them a process or a file."""

    def __init__(self, directory, cli):
        self.cli = cli
        self.directory = directory
        self.name = unique("shop")
        self.processes = []
        self.db = sqlite3.connect(directory / "shop.db", isolation_level=None)
        self.db.execute("PRAGMA journal_mode = wal")
        self.db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, price INTEGER)")
        self.insert(3)
        (directory / "cheap.py").write_text(
            "import headwater as hw\n\n"
            "@hw.pipeline\n"
            "def cheap(flow: hw.Flow) -> None:\n"
            f'    orders = flow.changes("{self.name}.main.orders")\n'
            '    flow.write(orders, to="cache", table="orders", key="id")\n'
        )
        (directory / "headwater.toml").write_text(
            f'[capture.{self.name}]\nsource = "sqlite:///{directory}/shop.db"\n'
            "heartbeat_s = 0.5\n"
            f'[sink.cache]\nkind = "sqlite"\nurl = "sqlite:///{directory}/cache.db"\n'
            '[spark]\nmaster = "local[2]"\n'
            '[pipeline.cheap]\nfile = "cheap.py"\n'
        )

    def insert(self, count, item="tea"):
        self.db.executemany("INSERT INTO orders (item, price) VALUES (?, ?)", [(item, 5)] * count)

    def start(self, *args):
        with (self.directory / "said.log").open("ab") as log:
            process = subprocess.Popen(
                [*COMMAND, *args, "--json"],
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env=self.cli.environment,
                cwd=self.directory,
            )
        self.processes.append(process)
        about = json.loads(read_line(process, STARTS_S))
        return process, about

    def spark(self, *args, code=0):
        """A command that starts a Spark, which takes its time on a busy machine."""
        result = subprocess.run(
            [*COMMAND, *args, "--json"],
            capture_output=True,
            timeout=2 * STARTS_S,
            env=self.cli.environment,
            cwd=self.directory,
            check=False,
        )
        assert result.returncode == code, result.stderr.decode()[-3000:]
        return json.loads(result.stdout)

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()
        self.db.close()

    def stored(self, query="SELECT id, item FROM orders ORDER BY id"):
        connection = sqlite3.connect(self.directory / "cache.db", timeout=60)
        try:
            return connection.execute(query).fetchall()
        except sqlite3.OperationalError:
            return []
        finally:
            connection.close()


@pytest.fixture
def shop(tmp_path, cli):
    shop = Shop(tmp_path, cli)
    yield shop
    shop.close()


def test_pipelines_that_do_not_exist_or_never_ran(shop, cli):
    assert "there is no pipeline cheep" in cli.error("pipeline", "status", "cheep", code=2)
    assert "did you mean cheap?" in cli.error("pipeline", "run", "cheep", code=2)
    (listed,) = cli.json("pipeline", "list")
    assert (listed["pipeline"], listed["state"], listed["writes"]) == ("cheap", "never ran", [])
    assert "never ran" in cli("pipeline", "status", code=3)
    assert "has never run" in cli.error("wait", "cheap", code=3)


@pytest.mark.slow
@pytest.mark.timeout(600)
@long  # minutes; the demo and a new project run these commands, too
def test_from_a_database_to_a_store(shop, cli):
    capture, _ = shop.start("capture", "run", shop.name)
    wait_until(lambda: f"{shop.name}.main.orders" in cli("topic", "list"))
    pipeline, about = shop.start("pipeline", "run")
    assert about["pipelines"] == ["cheap"]
    wait_until(lambda: len(shop.stored()) == 3, STARTS_S)

    shop.insert(2, "coffee")
    cli("wait", "cheap", "--timeout", "50s")  # everything that is committed
    assert shop.stored()[3:] == [(4, "coffee"), (5, "coffee")]
    topic = f"{shop.name}.main.orders"
    end = cli.json("wait", "cheap", f"{topic}:0:4")["cache/orders"][topic]["0"]
    assert end > 4
    assert "1 records behind" in cli.error(
        "wait", "cheap/cache/orders", f"{topic}:0:{end}", "--timeout", "100ms", code=3
    )
    assert "does not read other" in cli.error("wait", "cheap", "other:0:1", code=2)

    (status,) = cli.json("pipeline", "status")
    (write,) = status["writes"]
    assert (status["state"], write["lag"], write["live_version"]) == ("running", 0, 1)
    assert "in step" in cli("pipeline", "status", "cheap")
    groups = cli("group", "describe", "headwater.cheap.cache.orders", "--json")
    assert topic in groups

    pipeline.send_signal(signal.SIGKILL)
    pipeline.wait()
    shop.db.execute("DELETE FROM orders WHERE id = 1")
    shop.insert(1, "milk")
    pipeline, _ = shop.start("pipeline", "run", "cheap")
    wait_until(lambda: [row[0] for row in shop.stored()] == [2, 3, 4, 5, 6], STARTS_S)
    assert stop(pipeline) == 0, (shop.directory / "said.log").read_text()[-3000:]
    assert stop(capture) == 0

    (verdict,) = shop.spark("verify")  # all
    assert (verdict["name"], verdict["is_equal"], verdict["rows"]) == ("cheap", True, 5)
    cache = sqlite3.connect(shop.directory / "cache.db", isolation_level=None)
    cache.execute("UPDATE orders SET item = 'beer' WHERE id = 4")
    cache.close()
    (verdict,) = shop.spark("verify", "cheap/cache/orders", code=3)
    (difference,) = verdict["differences"]
    assert (difference["stored"]["item"], difference["derived"]["item"]) == ("beer", "coffee")
    traced = shop.spark("why", "cheap", "--key", "4")
    assert traced["row"] == {"id": 4, "item": "coffee", "price": 5}
    assert [cause["op"] for cause in traced["causes"]] == ["c"]
    promoted = shop.spark("pipeline", "rebuild", "cheap", "--promote")
    assert promoted == {"versions": {"cache/orders": 2}, "promoted": True}
    assert (4, "coffee") in shop.stored()
