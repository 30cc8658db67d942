"""Webhooks and alerts do on Apache Kafka what they do on our own broker."""

import pytest
from confluent_kafka import Producer
from support.gateway.serving import serving
from tiers import REAL_KAFKA

from headwater import config
from headwater.client.topics import NewTopic, ensure_topics
from headwater.gateway.alerts.service import AlertService
from headwater.gateway.webhooks.administration import Administration
from headwater.gateway.webhooks.definitions import Webhook
from headwater.gateway.webhooks.targets import parse_networks
from headwater.settings import ClientSettings

TIMEOUT_S = 120.0
LOOPBACK = "127.0.0.0/8"


@pytest.fixture(params=[REAL_KAFKA])
def any_broker(request):
    return request.getfixturevalue("kafka_address")


def test_webhooks_and_alerts(any_broker, listening, tmp_path):
    login = ClientSettings()
    topic = tmp_path.name
    ensure_topics(any_broker, login, [NewTopic(topic, 3)])
    listening.answers["hook"] = lambda number, got: (422 if got.json["value"] == 7 else 200, {})
    administration = Administration(any_broker, login)
    hook = Webhook("hook", listening.url_of("hook"), (topic,), max_in_flight=3)
    administration.add(hook, "end", parse_networks([LOOPBACK]))
    producer = Producer({"bootstrap.servers": any_broker})
    for number in range(30):
        producer.produce(topic, str(number), f"key-{number % 4}")
    producer.flush()
    with serving(
        tmp_path,
        broker__bootstrap=any_broker,
        gateway__webhook_allowed_networks=LOOPBACK,
        delivers=True,
    ):
        listening.wait(lambda: len(listening.got["hook"]) >= 29, TIMEOUT_S)
    (tmp_path / "headwater.toml").write_text(
        f'[broker]\nbootstrap = "{any_broker}"\n[alert.letters]\n'
        'when = "dead_letters(webhook.hook) > 0"\n'
        f'notify = ["webhook:{listening.url_of("alert")}"]\n'
    )
    alerts = AlertService(config.load(environ={}, cwd=str(tmp_path)))
    alerts.start()
    try:
        listening.wait(lambda: listening.got["alert"], TIMEOUT_S)
    finally:
        alerts.close()
    (progress,) = administration.progress()
    assert (progress.backlog, progress.dead_letters) == (0, 1)
    for key in range(4):
        values = [got.json["value"] for got in listening.got["hook"]]
        of_key = [value for value in values if value % 4 == key]
        assert of_key == sorted(of_key)
    administration.remove("hook")
