"""Alerts with a real broker, receivers and a mail server: fire, recover, over restarts."""

import time
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from support.certificates import Authority
from support.gateway.derived_store import DerivedStore
from support.gateway.receivers import receivers
from support.sinks.smtp_receiver import receiving_mails
from support.wire import wait_until

from headwater import config
from headwater.cli.main import run
from headwater.client.group_offsets import GroupOffsets
from headwater.errors import HeadwaterError
from headwater.gateway.alerts import store
from headwater.gateway.alerts.measures import Measures
from headwater.gateway.alerts.service import AlertService
from headwater.settings import ClientSettings

TIMEOUT_S = 60.0


@contextmanager
def watching(loaded):
    service = AlertService(loaded)
    service.start()
    try:
        yield service
    finally:
        service.close()


@pytest.fixture
def project(tmp_path, gateway_broker):
    def load(text):
        (tmp_path / "headwater.toml").write_text(
            f'[broker]\nbootstrap = "{gateway_broker}"\n{text}'
        )
        return config.load(environ={}, cwd=str(tmp_path))

    return load


def unique():
    return f"a{uuid4().hex[:8]}"


def test_lag_fires_recovers_and_retries_over_a_restart(
    project, gateway_broker, topic, capsys, tmp_path
):
    name = unique()
    with receivers() as listening:
        listening.answers["pager"] = lambda number, got: (500 if number == 0 else 200, {})
        loaded = project(
            f'[alert.{name}]\nwhen = "lag({topic}) > 3"\n'
            f'notify = ["webhook:{listening.url_of("pager")}", "log"]\n'
        )
        group = GroupOffsets(gateway_broker, ClientSettings(), f"reader-{name}")
        group.commit({(topic, 0): 0})
        producer = Producer({"bootstrap.servers": gateway_broker})
        for number in range(5):
            producer.produce(topic, str(number))
        producer.flush()
        with watching(loaded):
            listening.wait(lambda: listening.asked["pager"] >= 1, TIMEOUT_S)
        with watching(loaded):  # the notice that failed was not forgotten
            listening.wait(lambda: listening.got["pager"], TIMEOUT_S)
            first = listening.got["pager"][0].json
            assert (first["event"], first["alert"], first["value"]) == ("firing", name, 5)
            group.commit({(topic, 0): 5})
            listening.wait(lambda: len(listening.got["pager"]) >= 2, TIMEOUT_S)
        assert [got.json["event"] for got in listening.got["pager"]] == ["firing", "recovered"]
        group.close()
    events = [
        event["event"]
        for event in store.history(gateway_broker, ClientSettings(), 100)
        if event["alert"] == name
    ]
    assert events == ["recovered", "firing"]
    where = ["--config", str(tmp_path / "headwater.toml")]
    assert run(["alert", "list", *where]) == 0
    assert name in capsys.readouterr().out
    assert run(["alert", "history", *where]) == 0
    assert "recovered" in capsys.readouterr().out


def test_a_silence_notifies_nobody(project, gateway_broker, new_topic):
    name, letters = unique(), new_topic()
    with receivers() as listening:
        loaded = project(
            f'[alert.{name}]\nwhen = "dead_letters({letters}) = 0"\n'
            f'notify = ["webhook:{listening.url_of("pager")}"]\n'
        )
        store.silence(gateway_broker, ClientSettings(), name, int((time.time() + 3600) * 1000))
        with watching(loaded):
            end_s = time.monotonic() + TIMEOUT_S
            while not any(
                event["alert"] == name
                for event in store.history(gateway_broker, ClientSettings(), 20)
            ):
                assert time.monotonic() < end_s
                time.sleep(0.2)
        assert not listening.asked["pager"]
    stored = store.read(gateway_broker, ClientSettings())
    assert stored.states[name].state == "firing"
    assert stored.is_silenced(name, int(time.time() * 1000))
    store.silence(gateway_broker, ClientSettings(), name, None)
    assert not store.read(gateway_broker, ClientSettings()).silences.get(name)


def test_values_that_cannot_be_read_are_errors_and_no_alerts(project):
    loaded = project(
        '[alert.a]\nwhen = "lag(nobody-reads-this) > 0"\n'
        '[alert.b]\nwhen = "failing(nothing)"\n'
        '[alert.c]\nwhen = "disk_free() < 1GiB"\n'
        '[alert.d]\nwhen = "certificate_days() < 1"\n'
        '[alert.e]\nwhen = "(SELECT count(*) FROM w.t) > 1"\n'
        '[alert.f]\nwhen = "(SELECT count(*) FROM missing) within 5m > 1"\n'
    )
    with Measures(loaded) as measures:
        for alert in loaded.alerts.values():
            with pytest.raises(HeadwaterError):
                measures.value(alert.condition)


def test_rows_of_a_derived_table(tmp_path, topic):
    derived = DerivedStore(tmp_path, topic)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {"id": number, "city": "Wien" if number % 2 else None, "total": Decimal(number), "at": at}
        for number in range(10)
    ]
    derived.apply(rows, 10)
    with (tmp_path / "headwater.toml").open("a") as file:
        for name, when in (
            ("wien", "(SELECT count(*) FROM cache.orders WHERE city = 'Wien') > 3"),
            ("some", "(SELECT count(*) FROM cache.orders WHERE city = 'Wien' AND id < 4) > 3"),
            ("none", "(SELECT count(*) FROM cache.orders WHERE city IS NULL) >= 5"),
        ):
            file.write(f'\n[alert.{name}]\nwhen = "{when}"\n')
    loaded = config.load(environ={}, cwd=str(tmp_path))
    found = {}
    for name, alert in loaded.alerts.items():
        value = Measures(loaded).value(alert.condition)
        found[name] = (value, alert.condition.holds(value))
    assert found == {"wien": (4, True), "some": (2, False), "none": (5, True)}


def test_records_of_a_topic_within_a_time(project, gateway_broker, new_topic):
    topic, name = new_topic(partitions=2), unique()
    declined = f"(SELECT count(*) FROM `{topic}` WHERE state = 'declined' AND total >= 100)"
    with receivers() as listening:
        loaded = project(
            f'[alert.{name}]\nwhen = "{declined} within 1h > 2"\n'
            f'notify = ["webhook:{listening.url_of("pager")}"]\n'
            f'[alert.all]\nwhen = "(SELECT count(*) FROM `{topic}`) within 1h < 1"\n'
            f'[alert.none]\nwhen = "(SELECT count(*) FROM `{topic}` WHERE a.b IS NULL)'
            ' within 1h > 0"\n'
        )
        producer = Producer({"bootstrap.servers": gateway_broker, "transactional.id": topic})
        producer.init_transactions(TIMEOUT_S)

        def write(*values, at_ms=None):
            producer.begin_transaction()
            for number, value in enumerate(values):
                stamp = {} if at_ms is None else {"timestamp": at_ms}
                producer.produce(topic, value, partition=number % 2, **stamp)
            producer.commit_transaction(TIMEOUT_S)

        one = b'{"state":"declined","total":100.5}'
        now_ms = int(time.time() * 1000)
        write(one, one, at_ms=now_ms - 7_200_000)  # too old
        write(one, one, b'{"state":"declined","total":99}', b'{"state":"declined"}')
        write(b'{"state":"paid","total":500,"a":{"b":1}}', b"\xff no JSON", b'{"state":null}')
        with Measures(loaded) as measures, watching(loaded):

            def values():
                return [measures.value(alert.condition) for alert in loaded.alerts.values()]

            assert values() == [2, 7, 6]
            write(one)
            assert values() == [3, 8, 7]  # from where it was
            listening.wait(lambda: listening.got["pager"], TIMEOUT_S)
            assert listening.got["pager"][0].json["value"] == 3


def test_records_leave_the_count_with_their_time(project, gateway_broker, topic):
    loaded = project(f'[alert.a]\nwhen = "(SELECT count(*) FROM `{topic}`) within 2s > 0"\n')
    producer = Producer({"bootstrap.servers": gateway_broker})
    now_ms = int(time.time() * 1000)
    producer.produce(topic, "soon", timestamp=now_ms - 1_000)
    producer.produce(topic, "later", timestamp=now_ms + 3_600_000)  # of a clock that is wrong
    producer.flush()
    with Measures(loaded) as measures:
        condition = loaded.alerts["a"].condition
        assert measures.value(condition) in (1, 2)
        wait_until(lambda: measures.value(condition) == 0, TIMEOUT_S, "both to leave")


def test_disk_and_certificates(tmp_path):
    (tmp_path / ".headwater").mkdir()
    certificate, key = Authority(tmp_path).issue("gateway", days=20)
    (tmp_path / "headwater.toml").write_text(
        f'[gateway]\ntls_cert = "{certificate}"\ntls_key = "{key}"\n'
        '[alert.disk]\nwhen = "disk_free_percent() > 0"\n'
        '[alert.free]\nwhen = "disk_free() > 1kB"\n'
        '[alert.certificate]\nwhen = "certificate_days() < 14"\n'
    )
    loaded = config.load(environ={}, cwd=str(tmp_path))
    values = {name: Measures(loaded).value(one.condition) for name, one in loaded.alerts.items()}
    assert 0 < values["disk"] <= 100
    assert values["free"] > 1000
    assert 19 <= values["certificate"] <= 20


def test_mails_and_the_test_command(project, gateway_broker, tmp_path, capsys, new_topic):
    letters = new_topic()
    with receiving_mails() as mails:
        project(
            f'[sink.post]\nkind = "email"\nurl = "smtp://127.0.0.1:{mails.port}"\n'
            'options = { from = "headwater@example.org" }\n'
            f'[alert.letters]\nwhen = "dead_letters({letters}) > 0"\nmail = "post"\n'
            'notify = ["mailto:ops@example.org", "log"]\n'
        )
        where = ["--config", str(tmp_path / "headwater.toml")]
        assert run(["alert", "test", "letters", *where]) == 0
        (mail,) = mails.mails
    assert mail.message["To"] == "ops@example.org"
    assert "alert letters is tested" in mail.message["Subject"]
    assert "does not hold" in capsys.readouterr().out
    assert run(["alert", "test", "lettres", *where]) == 2
    assert "did you mean letters?" in capsys.readouterr().err


def test_metrics_of_alerts_say_what_fires_and_what_became_of_notices(
    project, gateway_broker, topic
):
    name, quiet = unique(), unique()
    with receivers() as listening:
        listening.answers["pager"] = lambda number, got: (500 if number == 0 else 200, {})
        loaded = project(
            f'[alert.{name}]\nwhen = "rate({topic}) > 0.01"\n'
            f'notify = ["webhook:{listening.url_of("pager")}"]\n'
            f'[alert.{quiet}]\nwhen = "rate({topic}) < 0.01"\nnotify = ["log"]\n'
            f'[alert.{unique()}]\nwhen = "rate(missing) > 1"\nnotify = ["log"]\n'
        )
        producer = Producer({"bootstrap.servers": gateway_broker})
        for number in range(30):
            producer.produce(topic, str(number))
        producer.produce(topic, "old", timestamp=int(time.time() * 1000) - 3_600_000)
        producer.flush()
        assert 0.4 < Measures(loaded).value(loaded.alerts[name].condition) <= 31 / 60
        with watching(loaded) as service:

            def lines():
                return "".join(service.metrics.lines()).splitlines()

            sent = f'headwater_alert_notices_total{{alert="{name}",result="sent"}} 1'
            wait_until(lambda: sent in lines(), TIMEOUT_S, "the notice")
            wait_until(lambda: any("alert_error" in x and x.endswith(" 1") for x in lines()))
            found = lines()
            assert f'headwater_alert_notices_total{{alert="{name}",result="failed"}} 1' in found
            assert f'headwater_alert_firing{{alert="{name}"}} 1' in found
            assert f'headwater_alert_firing{{alert="{quiet}"}} 0' in found
            assert f'headwater_alert_undelivered_notices{{alert="{name}"}} 0' in found
        assert not any(line.startswith("headwater_alert_firing{") for line in lines())
