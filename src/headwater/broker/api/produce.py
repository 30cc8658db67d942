"""Produce: appends one batch to each of the named partitions.

Versions 3–13 are served; 0 is advertised, because librdkafka turns compression off unless it is
(KAFKA-18659, librdkafka#4956).

A batch is stored as it was sent, whatever its compression. Its header and its CRC are checked. A
compressed one has to decompress to as many records as it claims, and to 128 MiB at the most; for a
compacted topic each of them needs a key (INVALID_RECORD, with the numbers of up to 1,000 records
without one). For a topic with `headwater.schema.validation` each key or value (or both) has to
begin with 0 and the id of a schema of the subject T-key or T-value (INVALID_RECORD likewise); what
follows is not looked at. See `admission/batch_checks.py`. With acks=1 and acks=all the answer comes
when the batch is durable (`headwater.durability`); with acks=0 there is none, and an error ends the
connection, so that the client looks at its metadata again. Batches of idempotent producers are
checked for gaps and not stored twice. Needs WRITE on the topics.

A transactional batch belongs to the transaction that its producer is in. From version 12 on the
partition joins the transaction with its first batch (KIP-890); the answer comes when that is
durable, too; and there its sequences begin at 0 (OUT_OF_ORDER_SEQUENCE_NUMBER), so that no batch
is taken in front of one that was refused. Before, AddPartitionsToTxn must have added it: else
TRANSACTION_ABORTABLE (11) or INVALID_TXN_STATE.

A topic's `headwater.overload.policy` (admission/overload.py) may let a request wait until a group
has caught up, or drop a batch: then the answer is POLICY_VIOLATION, or a success with offset −1 if
the topic says so (never inside a transaction). A client over its byte quota is slowed down
(admission/quotas.py).

Deviations: `timeout_ms` is not used, for there is no replica to wait for. Offsets inside a batch
are checked record by record for compacted topics only, and of an uncompressed batch for another
topic only whether so many records can be in so many bytes.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from headwater.broker.admission.batch_checks import Outcome
from headwater.broker.admission.quotas import PRODUCER_BYTES
from headwater.broker.api.registry import Answer, Held, RequestContext, serves
from headwater.broker.broker import COORDINATORS_TOPICS, Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.errors import MalformedMessage, StorageFailed
from headwater.log.config import OverloadPolicy
from headwater.log.partitions.partition import PartitionLog
from headwater.protocol import compression, records
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.produce import (
    ProduceRequest,
    ProduceResponse,
    ProduceResponseBatchIndexAndErrorMessage,
    ProduceResponsePartitionProduceResponse,
    ProduceResponseTopicProduceResponse,
)
from headwater.protocol.records import (
    LOG_APPEND_TIME,
    MIN_RECORD_BYTES,
    TRANSACTIONAL,
    BatchHeader,
)

ZSTD_SINCE = 7
IDS_SINCE = 13
JOINS_TRANSACTIONS_SINCE = 12
ABORTABLE_SINCE = 11

# The coordinator's error codes, translated to those that producers handle.
_OF_COORDINATOR = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
}
_OF_COORDINATOR_BEFORE_12 = {
    **_OF_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.NOT_ENOUGH_REPLICAS,
}
_OF_COORDINATOR_BEFORE_11 = {
    **_OF_COORDINATOR_BEFORE_12,
    ErrorCode.TRANSACTION_ABORTABLE: ErrorCode.INVALID_TXN_STATE,
}


@serves(ProduceRequest, first=3, last=13, advertised_from=0, pipelined=True)
def produce(
    broker: Broker, request: ProduceRequest, context: RequestContext
) -> "asyncio.Future[Answer]":
    if broker.overload.is_any:
        _hold_back(broker, request, context)
    outcomes = broker.batch_checks.check(request, context)
    if broker.quotas.is_any:
        broker.quotas.charge_bytes(context, PRODUCER_BYTES, _size_bytes(request))
    response = ProduceResponse()
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    waiting = 1  # for the end of this function; then one for each batch on its way

    def settle() -> None:
        nonlocal waiting
        waiting -= 1
        if waiting == 0 and not future.cancelled():
            future.set_result(None if request.acks == 0 else response)

    for topic_at, topic in enumerate(request.topic_data):
        answers = ProduceResponseTopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
        response.responses.append(answers)
        for at, data in enumerate(topic.partition_data):
            answer = ProduceResponsePartitionProduceResponse(index=data.index)
            answers.partition_responses.append(answer)
            name = topic.name
            try:
                _check_request(broker, request, context)
                if context.api_version >= IDS_SINCE:
                    name = broker.topic_name(topic.topic_id)
                broker.authorizer.require(
                    context,
                    Operation.WRITE,
                    ResourceType.TOPIC,
                    name,
                    topic_id=topic.topic_id if context.api_version >= IDS_SINCE else None,
                )
                partition = broker.partition(name, data.index)
                waiting += 1
                try:
                    outcome = outcomes.get((topic_at, at))
                    joining = _append(
                        broker, partition, data.records, outcome, request, context, answer, settle
                    )
                except ApiError:
                    waiting -= 1
                    raise
                if joining is not None:
                    waiting += 1
                    joining.add_done_callback(partial(_joined, context, answer, settle))
            except ApiError as error:
                _refuse(broker, name, answer, error)
    if request.acks == 0:
        _end_on_error(response)
    # Also without an answer to send, the request counts as in work until it is on disk: a producer
    # that never waits is slowed down to the disk's pace instead of filling the memory.
    settle()
    return future


def _hold_back(broker: Broker, request: ProduceRequest, context: RequestContext) -> None:
    """Raises Held if a topic's overload policy lets its producers wait."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            try:
                name = topic.name
                if context.api_version >= IDS_SINCE:
                    name = broker.topic_name(topic.topic_id)
                partition = broker.partition(name, data.index)
                if not broker.authorizer.sees(context, Operation.WRITE, ResourceType.TOPIC, name):
                    continue  # it is refused, and must not learn by waiting what there is
            except ApiError:
                continue
            until = broker.overload.must_wait(partition, len(data.records or b""))
            if until is not None:
                broker.metrics.held_back_looks[name] += 1
                raise Held(until)


def _size_bytes(request: ProduceRequest) -> int:
    return sum(
        len(data.records or b"") for topic in request.topic_data for data in topic.partition_data
    )


def _check_request(broker: Broker, request: ProduceRequest, context: RequestContext) -> None:
    if request.acks not in (-1, 0, 1):
        raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}")
    if request.transactional_id is not None:
        broker.authorizer.require(
            context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
        )


def _append(
    broker: Broker,
    partition: PartitionLog,
    data: memoryview | None,
    outcome: Outcome | None,
    request: ProduceRequest,
    context: RequestContext,
    answer: ProduceResponsePartitionProduceResponse,
    settle: Callable[[], None],
) -> "asyncio.Future[None] | None":
    """Calls `settle` when the batch is durable; returns what else has to be, if anything."""
    if data is None:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "no records")
    header = records.check_produced(data)
    _check_batch(broker, partition, header, context)
    if outcome is not None:
        _check_records(outcome, answer)
    policy = partition.config.overload
    if policy is not None:
        if broker.overload.is_dropped(partition, header.size_bytes):
            _drop(broker, partition, policy, header)
            settle()
            return None
        broker.overload.taken(partition, header.size_bytes)

    def done(error: StorageFailed | None) -> None:
        if policy is not None:
            broker.overload.settled(partition, header.size_bytes)
        if error is not None:
            answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            answer.error_message = str(error)
            answer.base_offset = -1
            broker.metrics.refused_batches[partition.topic] += 1
        settle()

    joining = None
    try:
        if header.attributes & TRANSACTIONAL:
            joining = _join(broker, partition, header, request.transactional_id, context)
        answer.base_offset = partition.append(data, header, done)
    except ApiError:
        if policy is not None:
            broker.overload.settled(partition, header.size_bytes)
        raise
    answer.log_start_offset = partition.log_start_offset
    stored = records.read_header(data)
    if stored.attributes & LOG_APPEND_TIME:
        answer.log_append_time_ms = stored.max_timestamp
    broker.metrics.produced_records[partition.topic] += header.record_count
    broker.metrics.produced_bytes[partition.topic] += header.size_bytes
    return joining


def _join(
    broker: Broker,
    partition: PartitionLog,
    header: BatchHeader,
    transactional_id: str | None,
    context: RequestContext,
) -> "asyncio.Future[None] | None":
    if transactional_id is None:
        raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "no transactional id")
    joins_implicitly = context.api_version >= JOINS_TRANSACTIONS_SINCE
    try:
        joining = broker.transactions.add(
            transactional_id,
            header.producer_id,
            header.producer_epoch,
            partition.topic,
            partition.index,
            implicit=joins_implicitly,
        )
    except ApiError as error:
        raise _as_producers_know_it(error, context) from None
    if joins_implicitly and header.base_sequence > 0 and not partition.tracks(header.producer_id):
        # With an epoch for each transaction its sequences begin at 0. What comes before this batch
        # was refused (the coordinator was loading), and will be sent again.
        raise ApiError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "not the first batch of its transaction"
        )
    return joining


def _joined(
    context: RequestContext,
    answer: ProduceResponsePartitionProduceResponse,
    settle: Callable[[], None],
    joining: "asyncio.Future[None]",
) -> None:
    error = joining.exception()
    if isinstance(error, ApiError) and not answer.error_code:
        answer.error_code = _as_producers_know_it(error, context).code
        answer.error_message = str(error)
        answer.base_offset = -1
    settle()


def _as_producers_know_it(error: ApiError, context: RequestContext) -> ApiError:
    if context.api_version >= JOINS_TRANSACTIONS_SINCE:
        codes = _OF_COORDINATOR
    elif context.api_version >= ABORTABLE_SINCE:
        codes = _OF_COORDINATOR_BEFORE_12
    else:
        codes = _OF_COORDINATOR_BEFORE_11
    return ApiError(codes.get(error.code, error.code), error.what, detail=error.detail)


def _drop(
    broker: Broker, partition: PartitionLog, policy: OverloadPolicy, header: BatchHeader
) -> None:
    """Does not take a batch: says so, or lets the producer believe it was taken."""
    topic = partition.topic
    if policy.drop == "refuse" or header.attributes & TRANSACTIONAL:
        broker.metrics.dropped_records[topic, "refused"] += header.record_count
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"group {policy.group} is more than {policy.limit_bytes} bytes behind",
            detail=f"{topic}-{partition.index}, headwater.overload.policy=drop",
        )
    partition.pass_over(header)
    broker.metrics.dropped_records[topic, "discarded"] += header.record_count


def _check_batch(
    broker: Broker, partition: PartitionLog, header: BatchHeader, context: RequestContext
) -> None:
    config = partition.config
    if header.size_bytes > config.max_message_bytes:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {header.size_bytes} bytes; max.message.bytes={config.max_message_bytes}",
        )
    body_bytes = header.size_bytes - records.HEADER_BYTES
    if header.codec == compression.NONE and header.record_count * MIN_RECORD_BYTES > body_bytes:
        # Believed, it would move the offsets on by up to 2^31 and let the index overflow.
        raise ApiError(
            ErrorCode.INVALID_RECORD, f"{header.record_count} records in {body_bytes} bytes"
        )
    if header.codec == compression.ZSTD and context.api_version < ZSTD_SINCE:
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7")
    if header.attributes & LOG_APPEND_TIME:
        raise ApiError(ErrorCode.INVALID_TIMESTAMP, "only the broker stamps the time of an append")
    if partition.topic in COORDINATORS_TOPICS:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "only the broker writes to this topic")
    if not config.log_append_time and header.max_timestamp >= 0:
        now_ms = broker.clock.now_ms()
        if (
            header.max_timestamp - now_ms > config.timestamp_after_max_ms
            or now_ms - header.base_timestamp > config.timestamp_before_max_ms
        ):
            raise ApiError(
                ErrorCode.INVALID_TIMESTAMP,
                f"timestamp {header.max_timestamp} is too far from the broker's {now_ms}",
            )


def _check_records(outcome: Outcome, answer: ProduceResponsePartitionProduceResponse) -> None:
    if isinstance(outcome, MalformedMessage):
        raise ApiError(ErrorCode.INVALID_RECORD, str(outcome))
    if outcome:
        # Which ones: the client may then send the others again (KIP-467).
        answer.record_errors = [
            ProduceResponseBatchIndexAndErrorMessage(
                batch_index=at, batch_index_error_message=reason
            )
            for at, reason in outcome
        ]
        raise ApiError(ErrorCode.INVALID_RECORD, f"record {outcome[0][0]}: {outcome[0][1]}")


def _refuse(
    broker: Broker, topic: str, answer: ProduceResponsePartitionProduceResponse, error: ApiError
) -> None:
    answer.error_code = error.code
    answer.error_message = str(error)
    answer.base_offset = -1
    # Not by a name that only the client knows: it could think of any number of them.
    broker.metrics.refused_batches[topic if broker.topic(topic) else ""] += 1


def _end_on_error(response: ProduceResponse) -> None:
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code:
                raise ApiError(ErrorCode(answer.error_code), answer.error_message or "")
