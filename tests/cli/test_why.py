"""`headwater why` without Spark: what is wrong with the question, and who can answer it."""

import pytest

from headwater.cli.commands.flow import why
from headwater.cli.main import run
from headwater.pipelines.running import status

ORDERS = {"sink": "cache", "table": "orders", "key": ["id"], "key_types": ["bigint"]}
OPTIONS = {"options": {}, "topics": ["orders"], "state": "running"}
TRACE = {
    "write": "cache/orders",
    "row": {"id": 1, "country": "FR"},
    "count": 3,
    "is_certain": True,
    "untraced": [{"topic": "clicks", "reason": "the key is computed on the way"}],
    "causes": [
        {"topic": "customers", "partition": 0, "offset": 7, "at": "2026-01-01T00:00:00+00:00",
         "op": "u", "record": {"id": 295}, "use": "enrich-1: table row"},
    ],
}  # fmt: skip


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "headwater.toml").write_text(
        '[broker]\nbootstrap = "127.0.0.1:1"\ndata_dir = "data"\n'
        f'[sink.cache]\nkind = "sqlite"\nurl = "sqlite:///{tmp_path}/cache.db"\n'
        '[pipeline.shop]\nfile = "shop.py"\n'
    )
    monkeypatch.chdir(tmp_path)

    def started(*args):
        raise AssertionError("Spark was started")

    monkeypatch.setattr(why, "started_pipeline", started)
    state_dir = tmp_path / "data" / "pipelines"
    status.write(state_dir, "shop", {"cache/orders": {**ORDERS, **OPTIONS}})
    yield tmp_path
    status.ended(state_dir, "shop")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shop", "--key", "one"], "'one' is no bigint, as id is"),
        (["shop", "--key", "number=1"], "'number=1' is no bigint"),
        (["shop", "--key", "id=1", "--key", "day=2"], "the key of cache/orders is id"),
        (["shup", "--key", "1"], "there is no pipeline shup"),
    ],
)
def test_a_wrong_key_is_rejected_before_spark_starts(project, capsys, arguments, message):
    assert run(["why", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_running_process_is_asked(project, monkeypatch, capsys):
    asked = []

    def ask(place, pipeline, question):
        asked.append((place, pipeline, question))
        return TRACE

    monkeypatch.setattr(why, "ask", ask)
    assert run(["why", "shop/orders", "--key", "id=1", "--limit", "1"]) == 0
    question = {"write": "cache/orders", "key": {"id": "1"}, "limit": 1}
    assert asked == [(project / "data" / "pipelines", "shop", question)]
    message = capsys.readouterr().out
    for part in ("FR", "any record of clicks", "enrich-1: table row", "id=295", "and 2 older"):
        assert part in message
