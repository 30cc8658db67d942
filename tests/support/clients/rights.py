"""A broker that asks who its clients are, users with chosen rights, and clients that log in."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from headwater.broker.security.acls import (
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from headwater.protocol import scram
from headwater.settings import BrokerSettings
from headwater.testing import InProcessBroker

PASSWORD = "s3cret"
TIMEOUT_S = 60
_numbers = itertools.count(1)


class GuardedBroker:
    """`admin` is its super user; every other user begins without a right."""

    def __init__(self, running: InProcessBroker) -> None:
        self._running = running
        self.address = running.bootstrap
        self.add_user("admin")

    def add_user(self, name: str) -> None:
        credentials = {
            mechanism: scram.new_credential(mechanism, PASSWORD, 4096)
            for mechanism in scram.DIGESTS
        }
        self._on_loop(self._broker.users.put({name: credentials}))

    def user(self) -> str:
        """A new user."""
        name = f"user-{next(_numbers)}"
        self.add_user(name)
        return name

    def allow(
        self,
        user: str,
        operation: Operation,
        kind: ResourceType,
        name: str,
        *,
        prefix: bool = False,
    ) -> None:
        pattern = PatternType.PREFIXED if prefix else PatternType.LITERAL
        acl = Acl(kind, name, pattern, f"User:{user}", "*", operation, Permission.ALLOW)
        self._on_loop(self._broker.authorizer.add([acl]))

    def topic(self) -> str:
        name = f"topic-{next(_numbers)}"
        self._on_loop(self._broker.create_topic(name, 1, {}))
        return name

    def client(self, user: str, **properties: Any) -> dict[str, Any]:
        """librdkafka's properties."""
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": PASSWORD,
            **{name.replace("_", "."): value for name, value in properties.items()},
        }

    def admin(self, user: str = "admin") -> AdminClient:
        return AdminClient(self.client(user))

    def java_properties(self, path: Path, user: str, **properties: str) -> str:
        """The file for a tool's --command-config and the like."""
        file = path / f"{user}-{next(_numbers)}.properties"
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        lines = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": f'{module} required username="{user}" password="{PASSWORD}";',
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
        file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        return str(file)

    @property
    def _broker(self) -> Any:
        assert self._running.running is not None
        return self._running.running.broker

    def _on_loop(self, work: Any) -> Any:
        assert self._running._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._running._loop).result(TIMEOUT_S)


@contextmanager
def guarded_broker(data_dir: Path) -> Iterator[GuardedBroker]:
    settings = BrokerSettings(
        listen="127.0.0.1:0",
        authentication="sasl",
        super_users=("User:admin",),
        group_initial_rebalance_delay_ms=0,
    )
    with InProcessBroker.serving(str(data_dir), settings) as running:
        yield GuardedBroker(running)
