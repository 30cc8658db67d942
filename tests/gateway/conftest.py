import itertools
import os

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from support.broker.secured import PASSWORD, USER, add_user, secured_broker
from support.console.chromium import EXECUTABLE
from support.gateway.serving import TIMEOUT_S, serving
from support.shared_broker import shared_broker

from headwater.events import Event, open_store

_names = itertools.count(1)


@pytest.fixture(scope="session")
def gateway_broker(tmp_path_factory):
    """One broker for all tests of the gateway that do not break it."""
    with shared_broker(tmp_path_factory.mktemp("gateway-broker")) as address:
        yield address


@pytest.fixture(scope="session")
def gateway(gateway_broker, tmp_path_factory):
    path = tmp_path_factory.mktemp("gateway")
    store = f"sqlite:///{path}/events.db"
    with serving(path, broker__bootstrap=gateway_broker, events__store=store) as served:
        yield served


@pytest.fixture
def client(gateway):
    with gateway.client() as client:
        yield client


@pytest.fixture(scope="session")
def admin(gateway_broker):
    return AdminClient({"bootstrap.servers": gateway_broker})


@pytest.fixture
def new_topic(admin):
    def create(partitions=1, **configs):
        name = f"gateway-{next(_names)}"
        configs = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topics([NewTopic(name, partitions, config=configs)])[name].result(TIMEOUT_S)
        return name

    return create


@pytest.fixture
def topic(new_topic):
    return new_topic()


class Secured:
    """`alice` may do everything and is the gateway's own login; `bob` may read `open` and write to
    `inbox`. There are the topics open, inbox and closed, and a stream of events closed.
    """

    def __init__(self, served, broker, admin):
        self.served = served
        self.broker = broker
        self.admin = admin
        self.alice = (USER, PASSWORD)
        self.bob = ("bob", "builder")

    def client(self, **options):
        return self.served.client(**options)


@pytest.fixture(scope="session")
def secured(tmp_path_factory):
    with secured_broker(tmp_path_factory.mktemp("secured-gateway")) as broker:
        add_user(broker, "bob", "builder")
        admin = AdminClient(
            {
                "bootstrap.servers": broker.bootstrap,
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": USER,
                "sasl.password": PASSWORD,
            }
        )
        topics = [NewTopic(name, 1) for name in ("open", "inbox", "closed")]
        for future in admin.create_topics(topics).values():
            future.result(TIMEOUT_S)
        rights = [
            AclBinding(
                ResourceType.TOPIC, name, ResourcePatternType.LITERAL, "User:bob", "*",
                operation, AclPermissionType.ALLOW,
            )
            for name, operation in (("open", AclOperation.READ), ("inbox", AclOperation.WRITE))
        ]  # fmt: skip
        for future in admin.create_acls(rights).values():
            future.result(TIMEOUT_S)
        path = tmp_path_factory.mktemp("g")
        with open_store(f"sqlite:///{path}/events.db") as store:
            store.append("closed", [Event("Closed")])
        with serving(
            path,
            events__store=f"sqlite:///{path}/events.db",
            broker__listen=broker.bootstrap,
            broker__authentication="sasl",
            client__username=USER,
            client__password=PASSWORD,
        ) as served:
            yield Secured(served, broker, admin)


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    if EXECUTABLE is None:
        pytest.skip("needs chromium: sudo apt-get install chromium")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=EXECUTABLE, args=arguments)
        yield running
        running.close()
