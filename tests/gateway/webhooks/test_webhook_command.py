"""`headwater webhook`, as a user types it; it works without a gateway."""

import json

import pytest

from headwater.cli.main import run


@pytest.fixture
def webhook(gateway_broker, tmp_path, monkeypatch, capsys):
    (tmp_path / "headwater.toml").write_text(
        f'[broker]\nbootstrap = "{gateway_broker}"\n'
        '[gateway]\nwebhook_allowed_networks = ["127.0.0.1"]\n'
    )
    monkeypatch.chdir(tmp_path)

    def command(*arguments):
        code = run(["webhook", *arguments])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return command


def test_from_add_to_remove(webhook, topic, listening):
    code, said = webhook("add", "typed", listening.url_of("typed"), "-t", topic, "--where", "$.a=1")
    assert code == 0
    assert "whsec_" in said
    secret = next(line for line in said.splitlines() if line.startswith("whsec_"))
    code, said = webhook("list", "--json")
    (row,) = [row for row in json.loads(said) if row["name"] == "typed"]
    assert (row["state"], row["backlog"], row["filter"]) == ("delivering", 0, ["where=$.a=1"])
    assert secret not in said
    assert webhook("test", "typed")[0] == 0
    assert listening.asked["typed"] == 1
    listening.answers["typed"] = lambda number, got: (500, {})
    code, said = webhook("test", "typed")
    assert (code, "answered 500" in said) == (1, True)
    assert webhook("pause", "typed")[0] == 0
    assert "paused by hand" in webhook("show", "typed")[1]
    assert webhook("resume", "typed")[0] == 0
    assert "no dead letters" in webhook("redeliver", "typed")[1]
    assert webhook("remove", "typed")[0] == 0
    code, said = webhook("show", "typed")
    assert (code, "there is no webhook typed" in said) == (1, True)


def test_mistakes(webhook, topic):
    for arguments, code, said in (
        (("add", "x", "https://10.0.0.1/", "-t", topic), 2, "no public address"),
        (("add", "x", "http://127.0.0.1:9/"), 2, "topics"),
        (("add", "x", "http://127.0.0.1:9/", "-t", "missing-one"), 1, "missing-one"),
        (("add", "x", "http://127.0.0.1:9/", "-t", topic, "--max-in-flight", "0"), 2, "1 to 100"),
        (("add", "x y", "http://127.0.0.1:9/", "-t", topic), 2, "name"),
        (("pause", "x"), 1, "no webhook"),
    ):
        found = webhook(*arguments)
        assert found[0] == code, (arguments, found)
        assert said in found[1]
        assert "Traceback" not in found[1]
