"""examples/bank, and `headwater events` on its store."""

import importlib.util
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import headwater as hw
from headwater.cli.main import run
from headwater.errors import CommandRefused
from headwater.events import CommandHandler
from headwater.testing import FakeClock

FILE = Path(__file__).parents[2] / "examples" / "bank" / "bank.py"


@pytest.fixture(scope="module")
def code():
    spec = importlib.util.spec_from_file_location("bank_example", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["bank_example"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["bank_example"]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def bank(code, clock, tmp_path):
    bank = code.open_bank(f"sqlite:///{tmp_path}/bank.db", clock)
    for name in ("eva", "otto"):
        bank.handle(code.Open(name))
    bank.handle(code.Deposit("eva", 100), command_id="first")
    bank.handle(code.Deposit("eva", 100), command_id="first")
    yield bank
    bank.store.close()


def balances(bank):
    return dict(bank.store.query("SELECT account, balance FROM balances"))


def test_commands_and_the_view(bank, code):
    assert balances(bank) == {"eva": 100, "otto": 0}
    for command, reason in (
        (code.Withdraw("eva", 101), "has 100, not 101"),
        (code.Withdraw("nobody", 1), "does not exist"),
        (code.Deposit("eva", 0), "more than 0"),
    ):
        with pytest.raises(CommandRefused, match=reason):
            bank.handle(command)
    assert bank.store.head() == 3


def test_a_transfer(bank, code):
    bank.handle(code.Transfer("t1", "eva", "otto", 30))
    bank.settle()
    assert balances(bank) == {"eva": 100, "otto": 0}
    bank.handle(code.End("t1", "approved"))
    bank.settle()
    assert balances(bank) == {"eva": 70, "otto": 30}
    assert bank.handler(code.End).state("transfer-t1") == "done"
    assert bank.store.stats()["refused_commands"] == 0


def test_a_transfer_without_the_money_fails(bank, code):
    bank.handle(code.Transfer("t1", "otto", "eva", 30))
    bank.handle(code.End("t1", "approved"))
    bank.settle()
    assert balances(bank) == {"eva": 100, "otto": 0}
    assert bank.handler(code.End).state("transfer-t1") == "failed"


def test_a_transfer_that_nobody_approves_expires_after_a_restart(bank, code, clock, tmp_path):
    bank.handle(code.Transfer("t1", "eva", "otto", 30))
    bank.settle()
    bank.store.close()
    clock.advance(code.APPROVAL_S + 1)
    again = code.open_bank(f"sqlite:///{tmp_path}/bank.db", clock)
    with again.store:
        again.settle()
        assert again.handler(code.End).state("transfer-t1") == "expired"
        with pytest.raises(CommandRefused, match="is expired"):
            again.handle(code.End("t1", "approved"))
        again.settle()
        assert balances(again) == {"eva": 100, "otto": 0}
        handler = CommandHandler(again.store, code.Account, check_replay=True)
        assert handler.state("account-eva") == 100


def test_the_asynchronous_view(spark):
    """A pipeline over the topic that the events are published to."""
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    events = [
        {"account": "eva", "_at": noon},  # Opened
        {"account": "eva", "amount": 100, "_at": noon},
        {"account": "eva", "amount": 30, "_at": noon + timedelta(hours=1)},
        {"account": "otto", "amount": 30, "_at": noon + timedelta(hours=1)},
        {"account": "eva", "amount": 5, "_at": noon + timedelta(days=1)},
    ]
    results = hw.testing.run(FILE.with_name("turnover.py"), {"outbox.event.account": events})
    found = {(row["account"], row["day"].day): row for row in results["turnover"]}
    assert {at: (row["movements"], row["amount"]) for at, row in found.items()} == {
        ("eva", 1): (2, 130),
        ("otto", 1): (1, 30),
        ("eva", 2): (1, 5),
    }


def test_the_command_line(bank, capsys, tmp_path):
    store = ["--store", f"sqlite:///{tmp_path}/bank.db"]

    def output(*arguments):
        assert run(["events", *arguments, *store]) == 0
        return capsys.readouterr().out

    lines = [json.loads(line) for line in output("read", "account-eva", "--json").splitlines()]
    assert [(line["version"], line["type"]) for line in lines] == [(1, "Opened"), (2, "Deposited")]
    assert "Deposited" in output("read", "--type", "Deposited", "--backwards", "--limit", "1")
    assert json.loads(output("streams", "--json"))[0] == {"stream": "account-eva", "version": 2}
    decider = f"{FILE}:Account"
    assert "at version 2: 100" in output("replay", "account-eva", "--decider", decider)
    states = output("replay", "account-eva", "--decider", decider, "--each", "--json")
    assert [json.loads(line)["state"] for line in states.splitlines()] == [0, 100]
    earlier = output("replay", "account-eva", "--decider", decider, "--version", "1", "--json")
    assert json.loads(earlier)["state"] == 0
    stats = json.loads(output("stats", "--json"))
    assert (stats["events"], stats["categories"]) == (3, {"account": 3})
    appended = ["append", "note-1", "Noted", '{"a": 1}', "--expected", "none", "--tag", "t"]
    assert output(*appended, "--id", "n1") == "position 4, version 1\n"
    assert "in the store already" in output(*appended, "--id", "n1")
    assert run(["events", *appended, *store]) == 1
    assert "it is at version 1" in capsys.readouterr().err
    assert '"a":1' in output("read", "--tag", "t", "--at", "2100-01-01")
    assert run(["events", "read", "--store", f"sqlite:///{tmp_path}/absent.db"]) == 1
    assert not (tmp_path / "absent.db").exists()
    for wrong in (["replay", "a-1", "--decider", "nope"], ["read", "-f", "--limit", "1"]):
        assert run(["events", *wrong, *store]) == 2


BAD_INPUT = """
import random
from dataclasses import dataclass
from headwater.events import EventTypes

types = EventTypes()


@types.register
@dataclass(frozen=True)
class Counted:
    by: int


class Counter:
    stream = decide = None

    def initial(self):
        return 0

    def evolve(self, count, event):
        return count + 100 // event.by


class Dice(Counter):
    def evolve(self, count, event):
        return random.random()


for rules in (Counter, Dice):
    rules.stream = rules.decide = lambda *_: []
"""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["append", "count-1", "Conted", '{"by": 1}'], 1, "did you mean Counted?"),
        (["append", "count-1", "Counted", '{"by": "x"}'], 1, "Expected `int`, got `str`"),
        (["append", "count-1", "Counted", "{"], 2, "no JSON"),
        (["append", "count-1", "Counted", '{"by": 1}', "--expected", "7"], 1, "at version 2"),
        (["append", "count-1", "Counted", '{"by": 1}', "--expected", "one"], 2, "none or any"),
        (["read", "count-7"], 0, "there is no stream count-7"),
        (["replay", "count-1"], 1, "Counted at position 2: integer division"),
        (["replay", "count-1", "--decider", "bad.py:Dice", "--check"], 1, "two replays of Dice"),
        (["replay", "count-1", "--decider", "bad.py:Diec"], 2, "did you mean bad.py:Dice?"),
        (["replay", "other-1"], 2, "which decider folds other-1?"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, monkeypatch, capsys, arguments, code, said):
    """Types of a category's decider hold for the command line, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text(BAD_INPUT)
    (tmp_path / "headwater.toml").write_text(
        '[events]\nstore = "sqlite:///e.db"\n[events.deciders]\ncount = "bad.py:Counter"\n'
    )
    for by in (5, 0):
        assert run(["events", "append", "count-1", "Counted", f'{{"by": {by}}}']) == 0
    assert run(["events", *arguments]) == code
    assert said in capsys.readouterr().err


def test_a_stream_is_followed(bank, code, tmp_path):
    store = f"sqlite:///{tmp_path}/bank.db"
    arguments = ["events", "read", "account-eva", "--follow", "--json", "--store", store]
    command = [sys.executable, "-m", "headwater.cli.main", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert [json.loads(process.stdout.readline())["version"] for _ in range(2)] == [1, 2]
            bank.handle(code.Deposit("otto", 5))
            bank.handle(code.Deposit("eva", 5))
            assert json.loads(process.stdout.readline())["data"]["account"] == "eva"
        finally:
            process.kill()
