"""The properties of a connector, without one."""

import re

import pytest
from support.capture.debezium_reader import settings_of

from headwater.capture.debezium.properties import (
    connector_class,
    properties,
    revealed,
    table_list,
)
from headwater.errors import ConfigError, SourceRefused

KNOWN = {"table.include.list", "snapshot.mode", "tombstones.on.delete", "slot.name"}


def follows(tables: tuple[str, ...], exclude: tuple[str, ...], table: str) -> bool:
    """As Debezium decides it: any pattern of the list matches all of the name."""
    return any(re.fullmatch(pattern, table) for pattern in table_list(tables, exclude).split(","))


def test_tables_are_shell_patterns() -> None:
    assert follows(("public.*",), (), "public.orders")
    assert not follows(("public.*",), (), "publicX.orders")
    assert not follows(("public.*",), (), "other.orders")
    assert follows(("a.b", "public.o?ders"), (), "public.orders")
    assert follows(("*.*",), (), "any.thing")
    assert not follows(("*.*",), ("*.tmp_*", "x.y"), "public.tmp_1")
    assert follows(("*.*",), ("*.tmp_*", "x.y"), "public.atmp_1")


def test_options_stand_as_they_are_and_win_over_our_defaults() -> None:
    given = properties(
        settings_of({"snapshot.mode": "when_needed", "custom.thing": "1", "jvm.heap": "1g"}),
        KNOWN,
        None,
    )
    assert given["snapshot.mode"] == "when_needed"
    assert given["custom.thing"] == "1"
    assert given["topic.prefix"] == "legacy"
    assert "jvm.heap" not in given
    assert "collection.include.list" not in given  # this connector does not know it


def test_a_snapshot_can_be_left_out() -> None:
    assert properties(settings_of({}, snapshot="never"), KNOWN, None)["snapshot.mode"] == "no_data"


@pytest.mark.parametrize(
    "name", ["topic.prefix", "offset.storage", "value.converter.schemas.enable", "tasks.max"]
)
def test_what_belongs_to_the_capture_cannot_be_set(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(name)):
        properties(settings_of({name: "x"}), KNOWN, None)


@pytest.mark.parametrize(
    "given", [{"columns": {"*.*.secret": "drop"}}, {"rows": {"*.*": "a = 1"}}, {"outbox": "a.b"}]
)
def test_settings_that_would_have_no_effect_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="does not apply"):
        properties(settings_of({}, **given), KNOWN, None)


def test_secrets_come_from_the_environment_and_from_files(tmp_path, monkeypatch) -> None:
    (tmp_path / "password").write_text("from the file\n")
    monkeypatch.setenv("LEGACY_USER", "from the environment")
    options = {
        "database.user": "${env:LEGACY_USER}",
        "database.password_file": str(tmp_path / "password"),
    }
    assert revealed(settings_of(options)) == {
        "database.user": "from the environment",
        "database.password": "from the file",
    }
    with pytest.raises(ConfigError, match="NOT_THERE"):
        revealed(settings_of({"database.user": "${env:NOT_THERE}"}))
    with pytest.raises(ConfigError, match="cannot be read"):
        revealed(settings_of({"database.password_file": str(tmp_path / "none")}))


def test_a_schema_history_is_stored_beside_the_topics() -> None:
    supported = {*KNOWN, "schema.history.internal"}
    given = properties(settings_of({}), supported, "127.0.0.1:9092")
    assert given["schema.history.internal.kafka.bootstrap.servers"] == "127.0.0.1:9092"
    assert given["schema.history.internal.kafka.topic"] == "__headwater_schema_history.legacy"
    own = {"schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory"}
    assert "schema.history.internal.kafka.topic" not in properties(
        settings_of(own), supported, None
    )
    with pytest.raises(SourceRefused, match="no topic for it"):
        properties(settings_of({}), supported, None)


def test_connectors_by_short_name_and_by_class() -> None:
    assert connector_class("debezium:oracle") == "io.debezium.connector.oracle.OracleConnector"
    assert connector_class("debezium:org.example.Own") == "org.example.Own"
    with pytest.raises(ConfigError, match="foxpro"):
        connector_class("debezium:foxpro")
