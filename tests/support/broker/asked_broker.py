"""Asking the handlers directly: a broker on a fresh log, no socket, but real bytes both ways."""

import asyncio

from headwater.broker import api
from headwater.broker.api.registry import APIS, RequestContext
from headwater.broker.broker import Broker, BrokerOptions
from headwater.broker.security.authorizer import ANONYMOUS, Principal
from headwater.clock import SystemClock
from headwater.log.disk.files import Files
from headwater.log.store import LogStore
from headwater.protocol import records
from headwater.protocol.records import Record
from headwater.protocol.schema import Message
from support.wire import LoneConnection

api.load_all()


class FailingFiles(Files):
    """A disk that refuses all writes while `is_full`."""

    is_full = False

    def pwrite(self, fd, data, position):
        if self.is_full:
            raise OSError(28, "No space left on device")
        super().pwrite(fd, data, position)

    def write_atomically(self, path, data, **options):
        if self.is_full:
            raise OSError(28, "No space left on device")
        super().write_atomically(path, data, **options)


class AskedBroker:
    """A broker whose handlers a test calls; each call goes through the codec twice."""

    def __init__(
        self,
        path: str,
        topic_defaults: dict[str, str] | None = None,
        options: BrokerOptions | None = None,
    ) -> None:
        self.runner = asyncio.Runner()
        self.options = options or BrokerOptions(node_id=1, default_partitions=3)
        self.path = path
        self.topic_defaults = topic_defaults or {}
        self.files = FailingFiles()
        self.open()

    def open(self) -> None:
        self.runner.run(self._open())

    async def _open(self) -> None:
        clock = SystemClock()
        self.store = LogStore(
            self.path, clock, files=self.files, topic_defaults=self.topic_defaults
        )
        self.store.open()
        self.broker = Broker(self.store, clock, self.options)
        self.broker.advertised = ("broker.example", 9092)
        await self.broker.start()

    def close(self) -> None:
        self.runner.run(self.broker.close())

    def reopen(self) -> None:
        self.close()
        self.open()

    async def call(
        self, request: Message, version: int, principal: Principal = ANONYMOUS
    ) -> Message:
        """The answer to a request, both as they come out of their bytes."""
        served = APIS[request.api_key]
        assert served.first <= version <= served.last
        received = type(request).decode(bytearray(request.encode(version)), version)
        context = RequestContext(
            version, 1, "test", "127.0.0.1", LoneConnection(), principal, served.name
        )
        answer = served.handle(self.broker, received, context)
        if not isinstance(answer, Message):
            answer = await answer
        return type(answer).decode(bytes(answer.encode(version)), version)

    def ask(self, request: Message, version: int, principal: Principal = ANONYMOUS):
        return self.runner.run(self.call(request, version, principal))

    def ask_at_once(self, *requests: Message, version: int):
        """Several requests as from several connections, in work at the same time."""

        async def all_of_them():
            return await asyncio.gather(*(self.call(request, version) for request in requests))

        return self.runner.run(all_of_them())

    def topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        configs = {key.replace("_", "."): value for key, value in configs.items()}
        self.runner.run(self.broker.create_topic(name, partitions, configs))

    def append(self, topic: str, count: int, partition: int = 0) -> None:
        """Batches of one record each, durable on return."""

        async def append() -> None:
            log = self.store.partitions[topic, partition]
            futures = []
            for _ in range(count):
                batch = records.build_batch([Record(0, self.broker.clock.now_ms(), b"k", b"v")])
                future = asyncio.get_running_loop().create_future()
                log.append(memoryview(batch), records.read_header(batch), future.set_result)
                futures.append(future)
            assert await asyncio.gather(*futures) == [None] * count

        self.runner.run(append())
