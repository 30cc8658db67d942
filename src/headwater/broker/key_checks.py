"""Whether every record of a batch for a compacted topic has a key, without holding up the loop.

A batch that is quick to look at is looked at where it stands. For another one the request is held
(`Held`): a reading thread decompresses it, the loop looks at some records at a time, and then the
request begins anew and finds what came of it. Requests of one connection do not overtake each
other, so a producer's batches stay in order.

Measured: 0.6 µs a record (taking them apart: 3.2 µs), so a slice holds up the loop for less than a
millisecond; a batch of 1 MiB in 10,000 records takes 6 ms in ten slices.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headwater.broker.api.registry import Held, RequestContext
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.errors import ApiError, MalformedMessage
from headwater.protocol import compression, records
from headwater.protocol.key_scan import KeyScan
from headwater.protocol.messages.produce import ProduceRequest
from headwater.protocol.records import DECOMPRESSED_LIMIT_BYTES, HEADER_BYTES

if TYPE_CHECKING:
    from headwater.broker.broker import Broker

SLICE_RECORDS = 1000
QUICK_BYTES = 16 << 10  # of a compressed batch
QUICK_PLAIN_BYTES = 1 << 20
REMEMBERED = 10_000  # requests that were looked at and have not begun anew
IDS_SINCE = 13

# Numbers of the records without a key, or why there is no telling.
Outcome = list[int] | MalformedMessage
# By the places of topic and partition in the request.
Outcomes = dict[tuple[int, int], Outcome]


class KeyChecks:
    """See the module. Holds results only of requests that are just being held."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._looked_at: OrderedDict[int, Outcomes] = OrderedDict()  # by connection

    def look(self, request: ProduceRequest, context: RequestContext) -> Outcomes:
        """What the batches for compacted topics are like. Raises Held until that is known."""
        outcomes: Outcomes = {}
        slow: dict[tuple[int, int], memoryview] = {}
        for place, batch in self._of_compacted_topics(request, context):
            quick = _quick_scan(batch)
            if quick is None:
                slow[place] = batch
            else:
                outcomes[place] = _outcome(quick)
        if slow:
            known = self._looked_at.pop(context.connection.id, None)
            if known is None or known.keys() != slow.keys():
                raise Held(asyncio.ensure_future(self._look_slowly(slow, context.connection.id)))
            outcomes |= known
        return outcomes

    def _of_compacted_topics(
        self, request: ProduceRequest, context: RequestContext
    ) -> Iterator[tuple[tuple[int, int], memoryview]]:
        broker = self._broker
        for topic_at, topic in enumerate(request.topic_data):
            name = topic.name
            if context.api_version >= IDS_SINCE:
                try:
                    name = broker.topic_name(topic.topic_id)
                except ApiError:
                    continue
            for at, data in enumerate(topic.partition_data):
                partition = broker.store.partitions.get((name, data.index))
                if partition is None:
                    continue  # it is refused later
                if "compact" not in partition.config.cleanup_policy:
                    break  # as are all of the topic
                batch = data.records
                if (
                    batch is not None
                    and HEADER_BYTES <= len(batch) <= partition.config.max_message_bytes
                    and broker.authorizer.sees(context, Operation.WRITE, ResourceType.TOPIC, name)
                ):
                    yield (topic_at, at), batch

    async def _look_slowly(self, batches: dict[tuple[int, int], memoryview], client: int) -> None:
        outcomes: Outcomes = {}
        for place, batch in batches.items():
            try:
                scan = await self._broker.store.in_reader(_scan, batch, DECOMPRESSED_LIMIT_BYTES)
                while not scan.step(SLICE_RECORDS):
                    await asyncio.sleep(0)
                outcomes[place] = scan.keyless
            except MalformedMessage as error:
                outcomes[place] = error
        self._looked_at[client] = outcomes
        while len(self._looked_at) > REMEMBERED:  # their clients have gone
            self._looked_at.popitem(last=False)


def _quick_scan(batch: memoryview) -> KeyScan | None:
    """None: it would take too long."""
    header = records.read_header(batch)
    is_plain = header.codec == compression.NONE
    if header.record_count > SLICE_RECORDS or not (is_plain or len(batch) <= QUICK_BYTES):
        return None
    try:
        return _scan(batch, QUICK_PLAIN_BYTES)
    except MalformedMessage:  # perhaps only because it is large
        return None


def _scan(batch: memoryview, limit_bytes: int) -> KeyScan:
    header = records.read_header(batch)
    body = compression.decompress(header.codec, batch[HEADER_BYTES:], limit_bytes)
    return KeyScan(bytes(body), header.record_count)


def _outcome(scan: KeyScan) -> Outcome:
    try:
        scan.step(SLICE_RECORDS)
    except MalformedMessage as error:
        return error
    return scan.keyless
