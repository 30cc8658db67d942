"""Which children a configuration asks for."""

import pytest

from headwater import config
from headwater.supervisor.plan import STOP_ORDER, children_of, data_dir_of, environment_of

WHOLE = """
[console]
listen = "127.0.0.1:0"
[gateway]
listen = "127.0.0.1:0"
[capture.shop]
source = "sqlite:///shop.db"
[capture.web-shop]
source = "sqlite:///web.db"
metrics_listen = "127.0.0.1:7"
[pipeline.a]
file = "a.py"
[pipeline.b]
file = "b.py"
isolated = true
[pipeline.c]
file = "c.py"
"""


def children(tmp_path, text, **environ):
    (tmp_path / "headwater.toml").write_text(text)
    return children_of(config.load(environ=environ, cwd=str(tmp_path)))


def test_every_kind_has_its_children(tmp_path):
    found = {child.name: child for child in children(tmp_path, WHOLE)}
    named = ("--config", str(tmp_path / "headwater.toml"))
    assert {name: child.arguments for name, child in found.items()} == {
        "broker": ("broker", "--json", "--log-format", "json", *named),
        "console": ("console", "--json", *named),
        "gateway": ("gateway", "--json", *named),
        "capture shop": ("capture", "run", "shop", *named, "--json"),
        "capture web-shop": ("capture", "run", "web-shop", *named, "--json"),
        "pipelines": ("pipeline", "run", "a", "c", "--json", *named),
        "pipeline b": ("pipeline", "run", "b", "--json", *named),
    }
    assert {child.kind for child in found.values()} == set(STOP_ORDER)
    assert found["capture shop"].environment == {
        "HEADWATER_CAPTURE__SHOP__METRICS_LISTEN": "127.0.0.1:0"
    }
    assert found["capture web-shop"].environment == {}
    assert [file.name for file in found["pipelines"].files] == ["headwater.toml", "a.py", "c.py"]


def test_no_broker_where_there_is_one_and_no_console_where_it_is_off(tmp_path):
    text = '[broker]\nbootstrap = "kafka:9092"\n[console]\nlisten = "off"\n'
    assert children(tmp_path, text) == []


@pytest.mark.parametrize(
    ("listen", "expected"), [("127.0.0.1:0", "127.0.0.1:55"), ("127.0.0.1:9092", None)]
)
def test_a_free_port_is_passed_to_the_children(tmp_path, monkeypatch, listen, expected):
    monkeypatch.delenv("HEADWATER_BROKER__BOOTSTRAP", raising=False)
    (tmp_path / "headwater.toml").write_text(f'[broker]\nlisten = "{listen}"\n')
    loaded = config.load(environ={}, cwd=str(tmp_path))
    environment = environment_of(loaded, "127.0.0.1:55")
    assert environment.get("HEADWATER_BROKER__BOOTSTRAP") == expected
    assert data_dir_of(loaded) == tmp_path / ".headwater"
