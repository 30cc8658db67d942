"""A client that asks until it is answered, over as many connections as that takes."""

import time
from uuid import UUID

from headwater.clock import SystemClock
from headwater.protocol import records
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsRequestCreatableTopicConfig,
)
from headwater.protocol.records import CONTROL, TRANSACTIONAL, Record
from support.broker.secured import PASSWORD, USER, Login
from support.wire import fetch_request

PATIENCE_S = 60.0
MECHANISM = "SCRAM-SHA-256"
READ_COMMITTED = 1
# The broker is starting, or ending what it was at: a client asks again.
AGAIN = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,  # as Produce says that the coordinator is not ready
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}


def connect(address: str, *, secured: bool) -> Login:
    """Raises OSError while there is no broker."""
    wire = Login(address)
    try:
        if secured:
            assert wire.log_in(MECHANISM, USER, PASSWORD).error_code == 0
    except BaseException:
        wire.close()
        raise
    return wire


class SteadyClient:
    """Its requests can be repeated: what was done, but not answered, is done once."""

    def __init__(self, address: str, *, secured: bool = False) -> None:
        self.clock = SystemClock()
        self._address = address
        self._secured = secured
        self._wire: Login | None = None

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def ask(self, request, version: int):
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.ask_once(request, version)
            except OSError:
                assert time.monotonic() < deadline_s, f"no answer to {type(request).__name__}"
                time.sleep(0.01)

    def ask_once(self, request, version: int):
        """Raises OSError if there is no answer; whether it was done is then unknown."""
        try:
            if self._wire is None:
                self._wire = connect(self._address, secured=self._secured)
            return self._wire.ask(request, version)
        except BaseException:
            self.close()
            raise

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def committed_from(self, topic: str, offset: int) -> tuple[list[Record], int]:
        """Some records that a reader of committed ones sees, and the offset behind them."""
        part = self._fetched(topic, offset)
        aborted = sorted((t.first_offset, t.producer_id) for t in part.aborted_transactions or ())
        ignored: set[int] = set()
        found: list[Record] = []
        data, at = part.records or b"", 0
        while at < len(data):
            header = records.read_header(data, at)
            batch = data[at : at + header.size_bytes]
            at += header.size_bytes
            while aborted and aborted[0][0] <= header.last_offset:
                ignored.add(aborted.pop(0)[1])
            if header.attributes & CONTROL:
                ignored.discard(header.producer_id)
            elif not (header.attributes & TRANSACTIONAL and header.producer_id in ignored):
                found += [record for record in records.records_of(batch) if record.offset >= offset]
            next_offset = header.last_offset + 1
        return found, next_offset if data else offset

    def all_committed(self, topic: str, offset: int = 0) -> list[Record]:
        """Everything up to the last stable offset as of now."""
        end = self._fetched(topic, offset, wait_ms=0).last_stable_offset
        found: list[Record] = []
        while offset < end:
            some, offset = self.committed_from(topic, offset)
            found += some
        return found

    def _fetched(self, topic: str, offset: int, wait_ms: int = 100):
        wait = {"min_bytes": 1, "max_wait_ms": wait_ms}  # for the archive, perhaps
        request = fetch_request(topic, offset, isolation_level=READ_COMMITTED, **wait)
        part = self.ask(request, 12).responses[0].partitions[0]
        assert part.error_code == 0, (topic, offset, ErrorCode(part.error_code))
        return part


def create_topics(client: SteadyClient, topics: dict[str, dict]) -> dict[str, UUID]:
    """Of one partition each, with their configs; their ids."""
    creations = [
        CreateTopicsRequestCreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=1,
            configs=[
                CreateTopicsRequestCreatableTopicConfig(name=key, value=str(value))
                for key, value in configs.items()
            ],
        )
        for name, configs in topics.items()
    ]
    answer = client.ask(CreateTopicsRequest(topics=creations, timeout_ms=30_000), 7)
    assert all(topic.error_code == 0 for topic in answer.topics), answer
    return {topic.name: topic.topic_id for topic in answer.topics}


def done(action) -> None:
    """Repeats what the broker was not ready for; any other refusal is an error of the test."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (code := action()) != 0:
        assert code in AGAIN, ErrorCode(code)
        assert time.monotonic() < deadline_s, ErrorCode(code)
        time.sleep(0.005)
