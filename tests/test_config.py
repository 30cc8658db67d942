"""Settings: their sources, their mistakes, their documentation."""

import dataclasses
from pathlib import Path

import pytest

from headwater import config, settings
from headwater.capture.settings import CaptureSettings
from headwater.console_settings import ConsoleSettings
from headwater.direct.settings import StatsdSettings, ZeroMqSettings
from headwater.errors import ConfigError
from headwater.gateway_settings import GatewaySettings
from headwater.pipelines.settings import PythonSettings, SparkSettings, ViewSettings
from headwater.sinks.settings import SinkSettings
from headwater.subjects.settings import SubjectSettings, SubjectsSettings

DOCS = Path(__file__).parent.parent / "docs" / "configuration.md"


def write(directory, text, name="headwater.toml"):
    (directory / name).write_text(text, encoding="utf-8")
    return str(directory)


def source_of(loaded, name):
    (setting,) = [setting for setting in loaded.settings if setting.name == name]
    return setting.source


def mistakes_of(text, tmp_path, **options):
    read = config.read(cwd=write(tmp_path, text), **{"environ": {}, **options})
    return [str(mistake) for mistake in read.mistakes]


def test_without_anything_every_setting_is_at_its_default(tmp_path):
    loaded = config.load(environ={}, cwd=str(tmp_path))
    assert loaded.broker == settings.BrokerSettings()
    assert {setting.source for setting in loaded.settings} == {"default"}
    assert loaded.bootstrap() == "127.0.0.1:9092"


@pytest.mark.parametrize(
    ("settings", "found_at"),
    [
        ('listen = "127.0.0.1:1"', "127.0.0.1:1"),
        ('listen = "0.0.0.0:1"', "127.0.0.1:1"),
        ('listen = "[::]:1"', "[::1]:1"),
        ('listen = "0.0.0.0:1"\nadvertise = "kafka.example.org:2"', "kafka.example.org:2"),
        ('advertise = "kafka.example.org:2"\nbootstrap = "other:3"', "other:3"),
    ],
)
def test_commands_find_the_broker_at_its_advertised_address(settings, found_at, tmp_path):
    loaded = config.load(environ={}, cwd=write(tmp_path, f"[broker]\n{settings}\n"))
    assert loaded.bootstrap() == found_at


@pytest.mark.parametrize("url", ["https://hooks.example/x7q", "hooks.example/x7q"])
def test_the_address_of_a_webhook_is_never_shown(tmp_path, url):
    read = config.read(cwd=write(tmp_path, f'[broker]\nlag_webhook = "{url}"\n'), environ={})
    assert bool(read.mistakes) is not url.startswith("https:")
    assert "x7q" not in repr(read.settings) + repr(read.broker) + "".join(map(str, read.mistakes))


def test_flag_beats_environment_beats_file_beats_default(tmp_path):
    cwd = write(
        tmp_path, '[broker]\nlisten = "127.0.0.1:1"\ndata_dir = "file"\n\nnode_id = 3 # three\n'
    )
    environ = {"HEADWATER_BROKER__LISTEN": "127.0.0.1:2", "HEADWATER_BROKER__DATA_DIR": "env"}
    loaded = config.load({"broker.listen": "127.0.0.1:3"}, environ=environ, cwd=cwd)
    assert loaded.broker.listen == "127.0.0.1:3"
    assert loaded.broker.data_dir == "env"
    assert loaded.broker.node_id == 3
    assert source_of(loaded, "broker.listen") == "flag --listen"
    assert source_of(loaded, "broker.data_dir") == "environment HEADWATER_BROKER__DATA_DIR"
    assert source_of(loaded, "broker.node_id") == "headwater.toml:5"
    assert source_of(loaded, "broker.advertise") == "default"


def test_the_file_is_named_by_flag_then_by_environment_then_found(tmp_path):
    cwd = write(tmp_path, "[broker]\nnode_id = 1")
    write(tmp_path, "[broker]\nnode_id = 2", "env.toml")
    write(tmp_path, "[broker]\nnode_id = 3", "flag.toml")
    environ = {"HEADWATER_CONFIG": "env.toml"}
    assert config.load(environ={}, cwd=cwd).broker.node_id == 1
    assert config.load(environ=environ, cwd=cwd).broker.node_id == 2
    assert config.load(path="flag.toml", environ=environ, cwd=cwd).broker.node_id == 3


@pytest.mark.parametrize("named_by", ["--config", "HEADWATER_CONFIG"])
def test_a_file_that_is_named_must_exist(tmp_path, named_by):
    environ = {"HEADWATER_CONFIG": "no.toml"} if named_by != "--config" else {}
    path = "no.toml" if named_by == "--config" else None
    with pytest.raises(ConfigError) as caught:
        config.load(path=path, environ=environ, cwd=str(tmp_path))
    assert caught.value.detail == f"{named_by}: no file no.toml; expected a file that exists"
    assert caught.value.exit_code == 2


def test_all_mistakes_are_reported_at_once_with_their_places(tmp_path):
    text = """\
[broker]
listn = "127.0.0.1:9092"
max_request_bytes = "much"
node = \"\"\"
node_id = 4
\"\"\"
auto_create_topics = "perhaps"
log_level = [
  "info",
]

[brokr]
node_id = 1
"""
    cwd = write(tmp_path, text)
    environ = {"HEADWATER_BROKER__NODE_ID": "-1", "HEADWATER_BROKER__LISTEM": "127.0.0.1:1"}
    with pytest.raises(ConfigError) as caught:
        config.load({"broker.listen": "nowhere"}, environ=environ, cwd=cwd)
    assert caught.value.what == "9 mistakes in the configuration"
    assert sorted(caught.value.detail.splitlines()) == sorted(
        [
            "headwater.toml:12: unknown section [brokr]; expected [broker] (the nearest name)",
            (
                "headwater.toml:2: unknown setting in [broker]: listn; expected listen"
                " (the nearest name)"
            ),
            (
                "headwater.toml:4: unknown setting in [broker]: node; expected node_id"
                " (the nearest name)"
            ),
            (
                "environment HEADWATER_BROKER__LISTEM: unknown setting LISTEM; expected LISTEN"
                " (the nearest name)"
            ),
            (
                "headwater.toml:3: broker.max_request_bytes = 'much'; expected a size such as"
                ' "64MiB"'
            ),
            "headwater.toml:7: broker.auto_create_topics = 'perhaps'; expected true or false",
            (
                "headwater.toml:8: broker.log_level = ['info']; expected"
                ' "debug" or "info" or "warning" or "error"'
            ),
            (
                "environment HEADWATER_BROKER__NODE_ID: broker.node_id = '-1'; expected"
                " a whole number from 0 to 2147483647"
            ),
            (
                "flag --listen: broker.listen = 'nowhere'; expected an address such as"
                ' "127.0.0.1:9092"'
            ),
        ]
    )


def test_a_wrong_value_is_reported_even_where_a_flag_overrides_it(tmp_path):
    assert mistakes_of(
        "[broker]\nlisten = 9092", tmp_path, flags={"broker.listen": "127.0.0.1:1"}
    ) == ['headwater.toml:2: broker.listen = 9092; expected an address such as "127.0.0.1:9092"']


def test_a_file_that_is_not_toml_is_reported_with_its_line(tmp_path):
    (mistake,) = mistakes_of('[broker]\nlisten = "127.0.0.1', tmp_path)
    assert mistake.startswith("headwater.toml:2: not TOML:")


def test_a_file_that_is_not_utf8_is_a_mistake(tmp_path):
    (tmp_path / "headwater.toml").write_bytes(b"\xff\xfe")
    (mistake,) = config.read(environ={}, cwd=str(tmp_path)).mistakes
    assert mistake.expected == "a readable UTF-8 file"


def test_a_view_is_among_the_pipelines(tmp_path):
    text = '[view.a]\nfile = "a.sql"\nkey = ["b"]\n[pipeline.b]\nfile = "b.py"\n'
    loaded = config.load(environ={"HEADWATER_VIEW__A__INTO": "x"}, cwd=write(tmp_path, text))
    assert loaded.pipelines["a"] == ViewSettings(name="a", file="a.sql", into="x", key=("b",))
    assert loaded.pipelines["b"] == PythonSettings(name="b", file="b.py")


def test_a_view_and_a_pipeline_of_one_name_are_a_mistake(tmp_path):
    text = '[view.a]\nfile = "a.sql"\ninto = "x"\n[pipeline.a]\nfile = "a.py"\n'
    assert mistakes_of(text, tmp_path) == [
        "[view.a]: [pipeline.a] has the same name; expected another name"
    ]


def test_a_section_named_almost_right_gets_a_suggestion(tmp_path):
    text = (
        '[pipelines.a]\nfile = "a.py"\n[pipelines.b]\nfile = "b.py"\n[sinks]\n[consol]\n[xyz.q]\n'
    )
    first, second, sinks, console, other = mistakes_of(text, tmp_path)
    assert first == "headwater.toml:1: unknown section [pipelines.a]; expected [pipeline.a]"
    assert second == "headwater.toml:3: unknown section [pipelines.b]; expected [pipeline.b]"
    assert sinks == "headwater.toml:5: unknown section [sinks]; expected [sink] (the nearest name)"
    assert console.endswith("[consol]; expected [console] (the nearest name)")
    assert other.startswith("headwater.toml:7: unknown section [xyz]; expected one of [broker], ")


def test_the_console_listens_on_loopback_or_not_at_all(tmp_path):
    assert config.load(environ={}, cwd=str(tmp_path)).console.listen == "127.0.0.1:8080"
    for written in ('"off"', "false"):
        cwd = write(tmp_path, f"[console]\nlisten = {written}")
        assert not config.load(environ={}, cwd=cwd).console.is_on
    text = "[console]\nlisten = 8080\nlissen = 1"
    unknown, wrong = mistakes_of(text, tmp_path)
    assert unknown.endswith(
        "unknown setting in [console]: lissen; expected listen (the nearest name)"
    )
    assert wrong == (
        "headwater.toml:2: console.listen = 8080; expected an address such as"
        ' "127.0.0.1:9092", or "off"'
    )


def test_sinks_and_pipelines(tmp_path):
    text = """
[spark]
master = "local[2]"
[spark.conf]
"spark.executor.memory" = "2g"
[sink.warehouse]
kind = "postgres"
url = "postgresql://writer:hunter2@db/warehouse"
[pipeline.revenue]
file = "revenue.py"
every = "500ms"
batch_bytes = "8MiB"
"""
    loaded = config.load(
        environ={"HEADWATER_PIPELINE__REVENUE__BATCH_ROWS": "7", "HEADWATER_SPARK__MASTER": "yarn"},
        cwd=write(tmp_path, text),
    )
    assert (loaded.spark.master, loaded.spark.conf) == ("yarn", {"spark.executor.memory": "2g"})
    assert loaded.sinks["warehouse"].kind == "postgres"
    assert "hunter2" not in repr((loaded.sinks, loaded.settings))
    pipeline = loaded.pipelines["revenue"]
    assert (pipeline.every, pipeline.batch_bytes, pipeline.batch_rows) == (0.5, 8 << 20, 7)


def test_a_pipeline_needs_a_file_and_a_sink_a_kind(tmp_path):
    file, kind = mistakes_of("[pipeline.a]\n[sink.b]\nurl = 'x'", tmp_path)
    assert file.startswith("headwater.toml:1: [pipeline.a] has no file; expected Python file")
    assert kind.startswith("headwater.toml:2: [sink.b] has no kind; expected What it is: postgres")


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [("64MiB", 64 << 20), ("64 mib", 64 << 20), ("10kB", 10_000), ("1.5g", 3 << 29), ("100", 100)],
)
def test_sizes(tmp_path, written, size_bytes):
    loaded = config.load(
        environ={"HEADWATER_BROKER__MAX_REQUEST_BYTES": written}, cwd=str(tmp_path)
    )
    assert loaded.broker.max_request_bytes == size_bytes


@pytest.mark.parametrize("written", ["", "-1", "0", "12 parsecs", "MiB"])
def test_what_is_no_size(tmp_path, written):
    environ = {"HEADWATER_BROKER__MAX_REQUEST_BYTES": written}
    assert len(config.read(environ=environ, cwd=str(tmp_path)).mistakes) == 1


@pytest.mark.parametrize(
    ("written", "duration_ms"),
    [("250ms", 250), ("90s", 90_000), ("1h30m", 5_400_000), ("7d", 604_800_000), ("0.5s", 500)],
)
def test_durations(written, duration_ms):
    assert settings.parse_duration_ms(written) == duration_ms


@pytest.mark.parametrize("written", ["", "7", "d", "1h 30m", "-1h", "1y"])
def test_what_is_no_duration(written):
    with pytest.raises(ValueError, match="a duration"):
        settings.parse_duration_ms(written)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("[::1]:0", ("::1", 0)),
        ("kafka.example.org:65535", ("kafka.example.org", 65535)),
    ],
)
def test_addresses(address, parts):
    assert settings.split_address(address) == parts


@pytest.mark.parametrize("address", ["", "9092", ":9092", "host", "host:", "host:65536", "::1:9"])
def test_what_is_no_address(address):
    with pytest.raises(ValueError, match="an address"):
        settings.split_address(address)


def test_topic_defaults_from_flags(tmp_path):
    flags = {"broker.topic_defaults.segment.bytes": "65536"}
    loaded = config.load(flags, environ={}, cwd=str(tmp_path))
    assert loaded.broker.topic_defaults == {"segment.bytes": "65536"}
    assert source_of(loaded, "broker.topic_defaults.segment.bytes") == "flag --topic-defaults"


def test_topic_defaults_from_file_and_environment(tmp_path):
    text = """\
[broker.topic_defaults]
"retention.ms" = "7d"
segment.bytes = "64MiB"
preallocate = true
"cleanup.policy" = "delete"
"""
    environ = {"HEADWATER_BROKER__TOPIC_DEFAULTS__SEGMENT_BYTES": "1MiB"}
    loaded = config.load(environ=environ, cwd=write(tmp_path, text))
    assert loaded.broker.topic_defaults == {
        "retention.ms": "604800000",
        "segment.bytes": "1048576",
        "preallocate": "true",
        "cleanup.policy": "delete",
    }
    assert source_of(loaded, "broker.topic_defaults.retention.ms") == "headwater.toml:2"
    assert source_of(loaded, "broker.topic_defaults.segment.bytes").startswith("environment")


def test_group_defaults_from_file_and_environment(tmp_path):
    text = """\
[broker.group_defaults]
"share.record.lock.duration.ms" = "1m"
share.auto.offset.reset = "earliest"
"""
    environ = {"HEADWATER_BROKER__GROUP_DEFAULTS__SHARE_DELIVERY_COUNT_LIMIT": "3"}
    loaded = config.load(environ=environ, cwd=write(tmp_path, text))
    assert loaded.broker.group_defaults == {
        "share.record.lock.duration.ms": "60000",
        "share.auto.offset.reset": "earliest",
        "share.delivery.count.limit": "3",
    }
    assert loaded.broker.topic_defaults == {}


def test_wrong_topic_defaults(tmp_path):
    (mistake,) = mistakes_of('[broker.topic_defaults]\n"retention.ms" = "long"\n', tmp_path)
    assert mistake == (
        "headwater.toml:2: broker.topic_defaults.retention.ms = 'long';"
        ' expected a duration such as "90s" or "1h30m"'
    )
    assert mistakes_of("[broker]\ntopic_defaults = 3", tmp_path) == [
        "headwater.toml:2: topic_defaults = 3; expected a table [broker.topic_defaults]"
    ]


def test_a_number_that_kafka_understands_is_left_alone():
    assert settings.topic_config("retention.ms", "-1") == "-1"
    assert settings.topic_config("cleanup.policy", "compact") == "compact"


SECTIONS = {
    "broker": settings.BrokerSettings,
    "client": settings.ClientSettings,
    "capture.NAME": CaptureSettings,
    "spark": SparkSettings,
    "console": ConsoleSettings,
    "gateway": GatewaySettings,
    "gateway.statsd": StatsdSettings,
    "gateway.zeromq.NAME": ZeroMqSettings,
    "sink.NAME": SinkSettings,
    "pipeline.NAME": PythonSettings,
    "view.NAME": ViewSettings,
    "subjects": SubjectsSettings,
    "subject.NAME": SubjectSettings,
}


def documented_in(section):
    """The rows of the section's table, each as its cells."""
    page = DOCS.read_text(encoding="utf-8").partition(f"## [{section}]\n")[2].partition("\n## ")[0]
    return [
        [cell.strip() for cell in line.split("|")]
        for line in page.splitlines()
        if line.startswith("| `")
    ]


def shown(default):
    if default in (None, (), dataclasses.MISSING):
        return ""
    text = ",".join(default) if isinstance(default, tuple) else str(default)
    return f"`{text.lower() if isinstance(default, bool) else text}`"


@pytest.mark.parametrize(
    ("section", "field"),
    [(name, field) for name, section in SECTIONS.items() for field in config.fields_of(section)],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_setting_is_documented_with_its_default(section, field):
    (row,) = [row for row in documented_in(section) if row[1] == f"`{config.key_of(field)}`"]
    assert row[2] == shown(field.default)
    assert row[3].endswith(".")


@pytest.mark.parametrize("section", SECTIONS)
def test_nothing_is_documented_that_does_not_exist(section):
    documented = [row[1].strip("`") for row in documented_in(section)]
    assert documented == [config.key_of(field) for field in config.fields_of(SECTIONS[section])]


def test_sections_inside_of_a_section(tmp_path):
    text = """
        [gateway]
        listen = "127.0.0.1:0"
        [gateway.statsd]
        listen = "127.0.0.1:8125"
        interval = "30s"
        [gateway.zeromq.jobs-in]
        socket = "pull"
        address = "tcp://127.0.0.1:5555"
        topic = "jobs"
    """
    environ = {
        "HEADWATER_GATEWAY__STATSD__TOPIC": "numbers",
        "HEADWATER_GATEWAY__ZEROMQ__JOBS_IN__BIND": "true",
        "HEADWATER_GATEWAY__LISTEN": "127.0.0.1:1",
    }
    loaded = config.load(environ=environ, cwd=write(tmp_path, text))
    assert loaded.gateway.listen == "127.0.0.1:1"
    assert (loaded.statsd.listen, loaded.statsd.topic) == ("127.0.0.1:8125", "numbers")
    assert loaded.statsd.interval == 30
    (jobs,) = loaded.zeromq.values()
    assert (jobs.name, jobs.socket, jobs.bind, jobs.topic) == ("jobs-in", "pull", True, "jobs")


def test_mistakes_in_sections_inside_of_a_section(tmp_path):
    text = """[gateway]
        statd = 1
        listen = "127.0.0.1:0"
        [gateway.statsd]
        lissen = 1
        interval = "1ms"
        [gateway.zeromq.a]
        socket = "rep"
        address = "udp://1.2.3.4:5"
        [gateway.zeromq]
        b = 1
    """
    environ = {"HEADWATER_GATEWAY__ZEROMQ": "x"}
    found = mistakes_of(text, tmp_path, environ=environ)
    assert [mistake.partition(";")[0] for mistake in found] == [
        "headwater.toml:5: unknown setting in [gateway.statsd]: lissen",
        "headwater.toml:11: b in [gateway.zeromq]",
        "headwater.toml:2: unknown setting in [gateway]: statd",
        "environment HEADWATER_GATEWAY__ZEROMQ: names no [gateway.zeromq.NAME]",
        "headwater.toml:6: gateway.statsd.interval = '1ms'",
        "headwater.toml:8: gateway.zeromq.a.socket = 'rep'",
        "headwater.toml:9: gateway.zeromq.a.address = 'udp://1.2.3.4:5'",
        "headwater.toml:7: [gateway.zeromq.a] has no topic",
    ]


def test_what_the_gateway_runs_needs_the_gateway(tmp_path):
    (mistake,) = mistakes_of('[gateway.statsd]\nlisten = "127.0.0.1:8125"', tmp_path)
    assert mistake.startswith("[gateway.statsd]: gateway.listen is off")


def test_lists_in_the_file_and_elsewhere(tmp_path):
    text = '[broker]\nsuper_users = ["admin", "User:CN=ops,O=Example"]\nsasl_mechanisms = ["PLAIN"]'
    in_file = config.load(environ={}, cwd=write(tmp_path, text)).broker
    assert in_file.super_users == ("User:admin", "User:CN=ops,O=Example")
    assert in_file.sasl_mechanisms == ("PLAIN",)
    environ = {
        "HEADWATER_BROKER__SUPER_USERS": "admin; CN=ops,O=Example",
        "HEADWATER_BROKER__SASL_MECHANISMS": "PLAIN, SCRAM-SHA-512",
    }
    elsewhere = config.load(environ=environ, cwd=str(tmp_path)).broker
    assert elsewhere.super_users == in_file.super_users
    assert elsewhere.sasl_mechanisms == ("PLAIN", "SCRAM-SHA-512")
    (mistake,) = mistakes_of('[broker]\nsasl_mechanisms = "GSSAPI"', tmp_path)
    assert 'expected "PLAIN" or' in mistake
    assert len(mistakes_of("[broker]\nsuper_users = 3", tmp_path)) == 1
    assert len(mistakes_of('[broker]\nsuper_users = ["User:"]', tmp_path)) == 1


def test_a_password_is_not_shown(tmp_path):
    loaded = config.load(environ={"HEADWATER_CLIENT__PASSWORD": "hush"}, cwd=str(tmp_path))
    assert loaded.client.password.reveal() == "hush"
    assert "hush" not in repr(loaded) + str(loaded.settings)
    assert "hush" not in str(mistakes_of("[client]\npassword = ['hush']", tmp_path))
