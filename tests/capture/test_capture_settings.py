"""[capture.NAME]: where its values come from, and what is said of mistakes in it."""

import subprocess
import sys

import pytest

from headwater import config
from headwater.capture.settings import CaptureSettings, with_password
from headwater.capture.sources import source_of
from headwater.errors import ConfigError
from headwater.settings import Secret


def read(tmp_path, text, environ=None):
    (tmp_path / "headwater.toml").write_text(text, encoding="utf-8")
    return config.read(environ=environ or {}, cwd=str(tmp_path))


def mistakes(tmp_path, text, environ=None):
    return [str(mistake) for mistake in read(tmp_path, text, environ).mistakes]


def test_a_capture_needs_no_more_than_its_source(tmp_path):
    loaded = read(tmp_path, '[capture.shop]\nsource = "postgresql://localhost/shop"\n')
    assert not loaded.mistakes
    source = Secret("postgresql://localhost/shop")
    assert loaded.captures == {"shop": CaptureSettings(name="shop", source=source)}


def test_everything_can_be_set_in_the_file(tmp_path):
    text = """\
[capture.shop]
source = "mysql://reader@db/shop"
tables = ["shop.*", "stock.items"]
exclude = ["shop.tmp_*"]
snapshot = "never"
heartbeat_s = "1m"
transactions = true

[capture.shop.topic_config]
"retention.ms" = "7d"
min.insync.replicas = 2

[capture.shop.columns]
"shop.customers.email" = "hash"

[capture.shop.rows]
"shop.orders" = "status != 'draft'"

[capture.shop.options]
server_id = 77

[capture.till-2]
source = "sqlite:///till.db"
"""
    loaded = read(tmp_path, text)
    assert not loaded.mistakes
    shop = loaded.captures["shop"]
    assert shop.tables == ("shop.*", "stock.items")
    assert (shop.exclude, shop.snapshot, shop.transactions) == (("shop.tmp_*",), "never", True)
    assert shop.heartbeat_s == 60
    assert shop.topic_config == {"retention.ms": "604800000", "min.insync.replicas": "2"}
    assert shop.columns == {"shop.customers.email": "hash"}
    assert shop.rows == {"shop.orders": "status != 'draft'"}
    assert shop.options == {"server_id": "77"}
    assert list(loaded.captures) == ["shop", "till-2"]
    sources = {capture.name: capture.source for capture in loaded.settings}
    assert sources["capture.shop.snapshot"] == "headwater.toml:5"
    assert sources["capture.shop.rows.shop.orders"] == "headwater.toml:17"
    assert sources["capture.till-2.tables"] == "default"


def test_the_environment_wins_and_can_name_a_capture_by_itself(tmp_path):
    environ = {
        "HEADWATER_CAPTURE__MY_SHOP__SOURCE": "postgresql://reader:hush@db/shop",
        "HEADWATER_CAPTURE__MY_SHOP__TABLES": "public.orders, public.items",
        "HEADWATER_CAPTURE__MY_SHOP__TOPIC_CONFIG__RETENTION_MS": "1h",
        "HEADWATER_CAPTURE__MY_SHOP__OPTIONS__SLOT_NAME": "mine",
        "HEADWATER_CAPTURE__OTHER__SOURCE": "sqlite:///other.db",
    }
    loaded = read(tmp_path, '[capture.my-shop]\nsource = "postgresql://db/old"\n', environ)
    assert not loaded.mistakes
    shop = loaded.captures["my-shop"]
    assert shop.source.reveal() == "postgresql://reader:hush@db/shop"
    assert shop.tables == ("public.orders", "public.items")
    assert shop.topic_config == {"retention.ms": "3600000"}
    assert shop.options == {"slot_name": "mine"}
    assert loaded.captures["other"].name == "other"
    assert "hush" not in repr(loaded)


def test_all_mistakes_are_reported_at_once_each_with_its_line(tmp_path):
    text = """\
[capture.shop]
sorce = "postgresql://localhost/shop"
tables = ["orders"]
snapshot = "always"

[capture.shop.topic_config]
"retention.ms" = "long"

[capture.Till]
source = "sqlite:///till.db"

[capture.stock]
source = "oracle://scott:tiger@db/stock"
columns = "email"
chunk_rows = 0
"""
    environ = {
        "HEADWATER_CAPTURE__STOCK__TABELS": "a.b",
        "HEADWATER_CAPTURE__STOCK__ROWS__X": "id > 1",
        "HEADWATER_CAPTURE__SHOP": "x",
    }
    errors = mistakes(tmp_path, text, environ)
    schemes = (
        "postgresql://, postgres://, mysql://, mariadb://, sqlite:///, mongodb://, mongodb+srv://,"
        " debezium:"
    )
    doc = config.fields_of(CaptureSettings)[0].metadata["doc"]
    assert sorted(errors) == sorted(
        [
            "headwater.toml:1: [capture.shop] has no source; expected " + doc,
            (
                "headwater.toml:2: unknown setting in [capture.shop]: sorce; expected source (the"
                " nearest name)"
            ),
            (
                "headwater.toml:3: capture.shop.tables = ['orders']; expected a pattern of"
                ' schema.table such as "public.*"'
            ),
            'headwater.toml:4: capture.shop.snapshot = \'always\'; expected "initial" or "never"',
            (
                "headwater.toml:7: capture.shop.topic_config.retention.ms = 'long'; expected a"
                ' duration such as "90s" or "1h30m"'
            ),
            (
                "headwater.toml:9: the name of [capture.Till]; expected a-z and 0-9, with single"
                " _ or - between, at most 48"
            ),
            (
                "headwater.toml:13: capture.stock.source = (hidden); expected an address that"
                f" begins with {schemes}"
            ),
            "headwater.toml:14: columns = 'email'; expected a table [capture.stock.columns]",
            (
                "headwater.toml:15: capture.stock.chunk_rows = 0; expected a whole number from 1 to"
                " 10000000"
            ),
            (
                "environment HEADWATER_CAPTURE__STOCK__TABELS: unknown setting TABELS; expected"
                " TABLES (the nearest name)"
            ),
            (
                "environment HEADWATER_CAPTURE__STOCK__ROWS__X: ROWS cannot be set here; expected"
                " [capture.stock.rows] in headwater.toml"
            ),
            (
                "environment HEADWATER_CAPTURE__SHOP: names no setting; expected __ and its name"
                " behind it"
            ),
        ]
    )
    assert read(tmp_path, text, environ).captures == {}


def test_a_rule_for_an_unknown_column(tmp_path):
    text = '[capture.a]\nsource = "sqlite:///x"\n[capture.a.columns]\n"a.b.c" = "hide"\n'
    assert mistakes(tmp_path, text) == [
        (
            'headwater.toml:4: capture.a.columns.a.b.c = \'hide\'; expected "drop", "null", "mask",'
            ' "mask:8", "hash", "hash:salt" or "truncate:20"'
        )
    ]


@pytest.mark.parametrize("name", ["Shop", "a.b", "a__b", "-a", "a-", "ü", "x" * 49])
def test_names_that_no_topic_or_slot_could_have(tmp_path, name):
    (error,) = mistakes(tmp_path, f'[capture."{name}"]\nsource = "sqlite:///x.db"\n')
    assert "the name of [capture." in error


def test_two_names_that_would_share_a_slot(tmp_path):
    text = '[capture.a-b]\nsource = "sqlite:///x"\n[capture.a_b]\nsource = "sqlite:///x"\n'
    assert mistakes(tmp_path, text) == [
        (
            "headwater.toml:3: the name of [capture.a_b]; expected a name that differs from"
            " [capture.a-b] in more than _ and -"
        )
    ]


def test_a_capture_is_a_section(tmp_path):
    assert mistakes(tmp_path, '[capture]\nsource = "sqlite:///x"\n') == [
        "headwater.toml:2: source in [capture]; expected a section [capture.NAME]"
    ]


def test_a_password_among_the_options_is_not_shown(tmp_path):
    text = (
        '[capture.a]\nsource = "debezium:x"\n[capture.a.options]\n"database.password" = "hush"\n'
        '"other.password" = ["hush"]\n'
    )
    text += '[capture.a.columns]\n"a.b.c" = "hash:hush"\n'
    loaded = read(tmp_path, text)
    assert loaded.captures["a"].options == {"database.password": "hush"}
    assert loaded.captures["a"].columns == {"a.b.c": "hash:hush"}
    assert "hush" not in repr(loaded.settings) + repr(loaded.mistakes)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://reader:hush@db:5432/shop", "postgresql://reader@db:5432/shop"),
        ("postgresql://db/shop?password=hush", "postgresql://db/shop"),
        ("mysql://reader:hu/s?h@x@db/shop", "mysql://reader@db/shop"),
        ("mongodb://me:hush@a:1,b:2/shop?replicaSet=x", "mongodb://me@a:1,b:2/shop"),
        ("sqlite:///var/till.db", "sqlite:///var/till.db"),
    ],
)
def test_the_source_is_shown_without_its_password(url, shown):
    assert CaptureSettings("a", Secret(url)).shown_source == shown


def test_a_password_from_a_file(tmp_path):
    file = tmp_path / "password"
    file.write_text("p@ss/word\n")
    settings = CaptureSettings("a", Secret("mysql://reader@db/shop"), password_file=str(file))
    assert with_password(settings).source.reveal() == "mysql://reader:p%40ss%2Fword@db/shop"
    for url in ("mysql://db/shop", "mysql://reader:x@db/shop"):
        with pytest.raises(ConfigError, match="has a password or no user"):
            with_password(CaptureSettings("a", Secret(url), password_file=str(file)))
    with pytest.raises(ConfigError, match="cannot be read"):
        with_password(CaptureSettings("a", Secret("mysql://u@db/x"), password_file="/no/file"))


def test_reading_the_configuration_needs_nothing_from_outside(tmp_path):
    """The broker reads it, too, and its start and memory count."""
    (tmp_path / "headwater.toml").write_text('[capture.a]\nsource = "sqlite:///x"\n')
    script = (
        f"import sys\nsys.path = {sys.path!r}\nbefore = set(sys.modules)\n"
        "from headwater import config\nassert config.load(environ={}).captures\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*(new - set(sys.stdlib_module_names)))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["headwater"]


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_an_unknown_option_is_refused(scheme):
    source = Secret(f"{scheme}://u@127.0.0.1/shop")
    option = "publicatoin" if scheme == "postgresql" else "serverid"
    with pytest.raises(ConfigError, match=f"no option {option}") as raised:
        source_of(CaptureSettings("shop", source, options={option: "x"}))
    assert raised.value.hint in ("did you mean publication?", "did you mean server_id?")


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_password_that_is_not_encoded_is_reported_without_being_shown(scheme):
    source = Secret(f"{scheme}://u:ge@heim:ge/heim#1@127.0.0.1/shop")
    with pytest.raises(ConfigError) as raised:
        source_of(CaptureSettings("shop", source))
    assert "password_file" in raised.value.hint
    assert "heim" not in str(raised.value) + raised.value.hint
