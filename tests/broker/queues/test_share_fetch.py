"""ShareFetch and ShareAcknowledge, as a client sees them."""

import pytest
from support.broker.queue_harness import (
    ACCEPT,
    GAP,
    GROUP,
    REJECT,
    RELEASE,
    RENEW,
    acquired,
    acquired_spans,
    queue_broker,
)
from support.wire import Wire, batch_of, produce_request, wait_until

from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasRequestOpData,
)
from headwater.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from headwater.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest


@pytest.fixture
def broker(tmp_path):
    with queue_broker(tmp_path) as broker:
        yield broker


def test_each_record_goes_to_one_consumer(broker):
    jobs = broker.topic()
    broker.produce(b"a", b"b")
    broker.produce(b"c")
    one, other = broker.consumer(jobs), broker.consumer(jobs)
    assert one.values(max_records=2) == [b"a", b"b"]
    assert other.values(max_records=2) == [b"c"]
    assert one.take() == []


def test_what_is_accepted_never_comes_again_and_what_is_released_does(broker):
    jobs = broker.topic()
    broker.produce(b"a", b"b", b"c")
    one, other = broker.consumer(jobs), broker.consumer(jobs)
    assert one.take() == [0, 1, 2]
    assert one.acknowledge((0, 2, [ACCEPT, RELEASE, ACCEPT])) == 0
    answer = other.fetch()
    assert acquired_spans(answer) == [(1, 1, 2)]
    assert other.acknowledge((1, 1, ACCEPT)) == 0
    assert one.take() == []
    assert other.take() == []


def test_acknowledgements_come_with_a_fetch(broker):
    jobs = broker.topic()
    broker.produce(b"a")
    broker.produce(b"b")
    consumer = broker.consumer(jobs)
    assert consumer.take(max_records=1) == [0]
    answer = consumer.fetch(acknowledge=[(0, 0, 0, ACCEPT)])
    assert acquired(answer) == [1]
    assert answer.responses[0].partitions[0].acknowledge_error_code == 0
    answer = consumer.fetch(acknowledge=[(0, 0, 1, ACCEPT)])  # 0 is over, 1 is held: both are fine
    assert answer.responses[0].partitions[0].acknowledge_error_code == 0
    answer = consumer.fetch(acknowledge=[(0, 5, 5, ACCEPT)])
    assert answer.responses[0].partitions[0].acknowledge_error_code == ErrorCode.INVALID_REQUEST


def test_a_batch_is_taken_whole_unless_the_limit_is_exact(broker):
    jobs = broker.topic()
    broker.produce(*[b"x"] * 10)
    consumer = broker.consumer(jobs)
    assert consumer.take(max_records=3, share_acquire_mode=1) == [0, 1, 2]
    assert consumer.take(max_records=3) == list(range(3, 10))


def test_acquired_ranges_follow_the_batch_size(broker):
    jobs = broker.topic()
    for _ in range(6):
        broker.produce(b"x", b"y")
    consumer = broker.consumer(jobs)
    answer = consumer.fetch(batch_size=4)
    assert acquired_spans(answer) == [(0, 3, 1), (4, 7, 1), (8, 11, 1)]


def test_a_lock_ends_and_the_next_consumer_gets_the_record(broker):
    jobs = broker.topic()
    broker.produce(b"a")
    one, other = broker.consumer(jobs), broker.consumer(jobs)
    assert one.take() == [0]
    other.take()
    other.send_fetch(max_wait_ms=20_000)
    broker.broker.advance(29.9)
    broker.broker.advance(0.2)
    assert acquired_spans(other.receive_fetch()) == [(0, 0, 2)]
    assert one.acknowledge((0, 0, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE


def test_a_lock_is_renewed(broker):
    jobs = broker.topic()
    broker.produce(b"a")
    one, other = broker.consumer(jobs), broker.consumer(jobs)
    assert one.take() == [0]
    for _ in range(3):
        broker.broker.advance(20)
        assert one.acknowledge((0, 0, RENEW), is_renew_ack=True) == 0
    assert other.take() == []
    assert one.acknowledge((0, 0, RENEW)) == ErrorCode.INVALID_REQUEST  # it was not announced
    broker.set({"share.renew.acknowledge.enable": "false"})
    assert one.acknowledge((0, 0, RENEW), is_renew_ack=True) == ErrorCode.INVALID_REQUEST
    assert one.acknowledge((0, 0, ACCEPT)) == 0


def test_a_renewal_in_a_fetch_fetches_nothing(broker):
    jobs = broker.topic()
    broker.produce(b"a")
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0]
    broker.produce(b"b")
    nothing = {"max_records": 0, "max_bytes": 0, "min_bytes": 0, "max_wait_ms": 0}
    renewal = {"acknowledge": [(0, 0, 0, RENEW)], "is_renew_ack": True}
    assert acquired(consumer.fetch(**renewal, **nothing)) == []
    assert consumer.fetch(**renewal).error_code == ErrorCode.INVALID_REQUEST
    assert consumer.take() == [1]


def test_the_bytes_are_bounded_by_whole_batches_and_none_means_nothing(broker):
    jobs = broker.topic()
    broker.produce(b"a")
    broker.produce(b"b")
    consumer = broker.consumer(jobs)
    assert consumer.take(max_bytes=0) == []
    assert consumer.take(max_bytes=0, max_wait_ms=1) == []
    assert consumer.take(max_bytes=1) == [0]
    assert consumer.take(max_bytes=1) == [1]


def test_a_fetch_waits_for_a_record(broker):
    jobs = broker.topic()
    consumer = broker.consumer(jobs)
    assert consumer.take() == []
    consumer.send_fetch(max_wait_ms=20_000)
    broker.produce(b"a")
    assert acquired(consumer.receive_fetch()) == [0]


def test_a_fetch_waits_for_min_bytes(broker):
    jobs = broker.topic()
    consumer = broker.consumer(jobs)
    consumer.take()
    broker.produce(b"a")
    consumer.send_fetch(max_wait_ms=20_000, min_bytes=300)
    broker.produce(b"b" * 300)
    assert acquired(consumer.receive_fetch()) == [0, 1]


def test_a_fetch_that_waits_gets_what_another_gives_back(broker):
    jobs = broker.topic()
    broker.produce(b"a")
    one, other = broker.consumer(jobs), broker.consumer(jobs)
    assert one.take() == [0]
    other.take()
    other.send_fetch(max_wait_ms=20_000)
    assert one.acknowledge((0, 0, RELEASE)) == 0
    assert acquired(other.receive_fetch()) == [0]


@pytest.mark.parametrize("end", ["connection", "session", "acknowledge"])
def test_what_a_consumer_held_goes_to_another_when_it_leaves(broker, end):
    jobs = broker.topic()
    broker.produce(b"a", b"b")
    one, other = broker.consumer(jobs), broker.consumer(jobs)
    assert one.take() == [0, 1]
    other.take()
    other.send_fetch(max_wait_ms=20_000)
    if end == "connection":
        one.close()
    elif end == "session":
        assert one.fetch(epoch=-1, acknowledge=[(0, 0, 0, ACCEPT)]).error_code == 0
    else:
        assert one.acknowledge((0, 0, ACCEPT), epoch=-1) == 0
    assert acquired(other.receive_fetch()) == ([0, 1] if end == "connection" else [1])


def test_what_a_member_held_that_leaves_its_group_goes_to_another(broker):
    jobs = broker.topic()
    broker.produce(b"a")
    consumer = broker.consumer(jobs)

    def heartbeat(epoch: int) -> None:
        request = ShareGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=consumer.member_id,
            member_epoch=epoch,
            subscribed_topic_names=["jobs"] if epoch == 0 else None,
        )
        assert broker.wire.ask(request, 1).error_code == 0

    heartbeat(0)
    assert consumer.take() == [0]
    heartbeat(-1)  # its connection and its session stay
    assert broker.consumer(jobs).take() == [0]


def test_the_cap_on_records_in_flight(broker):
    jobs = broker.topic(**{"share.partition.max.record.locks": "100"})
    for _ in range(30):
        broker.produce(*[b"x"] * 10)
    consumer = broker.consumer(jobs)
    assert consumer.take(max_records=500) == list(range(100))
    assert consumer.take() == []
    consumer.send_fetch(max_wait_ms=20_000, acknowledge=[(0, 50, 59, ACCEPT)])
    assert acquired(consumer.receive_fetch()) == list(range(100, 110))


def test_a_slow_record_delays_no_other_consumer(broker):
    """The start offset stays in front of it, but the group goes on: far beyond the cap."""
    jobs = broker.topic(**{"share.partition.max.record.locks": "100"})
    consumer = broker.consumer(jobs)
    for number in range(50):
        broker.produce(*[b"x"] * 20)
        taken = consumer.take()
        assert taken == list(range(20 * number, 20 * number + 20))
        assert consumer.acknowledge((taken[1 if number == 0 else 0], taken[-1], ACCEPT)) == 0
    [status] = broker.broker.running.broker.queues.describe(GROUP)
    assert (status.start_offset, status.in_flight, status.settled) == (0, 1, 999)
    assert consumer.acknowledge((0, 0, ACCEPT)) == 0
    [status] = broker.broker.running.broker.queues.describe(GROUP)
    assert (status.start_offset, status.end_offset, status.settled) == (1000, 999, 0)


def test_sessions_have_turns(broker):
    jobs = broker.topic()
    consumer = broker.consumer(jobs)
    assert consumer.fetch(epoch=1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert consumer.acknowledge((0, 0, ACCEPT), epoch=1) == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert consumer.fetch(epoch=-1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert consumer.fetch().error_code == 0
    assert consumer.fetch(epoch=5).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert consumer.acknowledge(epoch=0) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert consumer.acknowledge(epoch=5) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert consumer.fetch(epoch=1).error_code == 0
    assert consumer.fetch(epoch=0, acknowledge=[(0, 0, 0, ACCEPT)]).error_code == (
        ErrorCode.INVALID_REQUEST
    )


def test_a_member_that_opens_a_new_session_retains_its_acquired_records(broker):
    jobs = broker.topic()
    broker.produce(b"a")
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0]
    consumer.epoch = 0
    assert consumer.take() == []
    assert consumer.acknowledge((0, 0, ACCEPT)) == 0


def test_partitions_come_and_go(broker):
    jobs = broker.topic(partitions=2)
    broker.produce(b"a", partition=0)
    broker.produce(b"b", partition=1)
    consumer = broker.consumer(jobs, partitions=(0, 1))
    answer = consumer.fetch(max_records=1)
    assert sum(len(topic.partitions) for topic in answer.responses) == 1
    answer = consumer.fetch()
    assert [part.partition_index for part in answer.responses[0].partitions] == [1]
    consumer.forget(1)
    broker.produce(b"c", partition=1)
    assert consumer.take() == []


def test_unknown_topics_partitions_and_members(broker):
    jobs = broker.topic()
    stranger = broker.consumer(jobs, partitions=(0, 7))
    answer = stranger.fetch()
    assert [(p.partition_index, p.error_code) for p in answer.responses[0].partitions] == [
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    ]
    from uuid import uuid4

    lost = broker.consumer(uuid4())
    assert lost.fetch().responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert lost.acknowledge((0, 0, ACCEPT)) == ErrorCode.UNKNOWN_TOPIC_ID
    lost.member_id = ""
    assert lost.fetch().error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("batches", "code"),
    [
        ([(1, 0, ACCEPT)], ErrorCode.INVALID_REQUEST),
        ([(0, 1, ACCEPT), (1, 2, ACCEPT)], ErrorCode.INVALID_REQUEST),
        ([(0, 2, [ACCEPT, ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 2, [])], ErrorCode.INVALID_REQUEST),
        ([(0, 2, 9)], ErrorCode.INVALID_REQUEST),
        ([(0, 9, ACCEPT)], ErrorCode.INVALID_REQUEST),
        ([(0, 0, ACCEPT), (1, 2, GAP)], 0),
    ],
)
def test_acknowledgements_are_checked(broker, batches, code):
    jobs = broker.topic()
    broker.produce(b"a", b"b", b"c")
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0, 1, 2]
    assert consumer.acknowledge(*batches) == code
    assert consumer.acknowledge((0, 2, ACCEPT)) == 0 or code == 0


def test_acknowledgements_count_all_or_none(broker):
    jobs = broker.topic()
    for _ in range(3):
        broker.produce(b"x")
    one, other = broker.consumer(jobs), broker.consumer(jobs)
    assert one.take(max_records=2) == [0, 1]
    assert other.take() == [2]
    assert one.acknowledge((0, 1, ACCEPT), (2, 2, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE
    assert one.acknowledge((0, 1, RELEASE)) == 0
    assert other.take() == [0, 1]


def test_where_a_group_begins(broker):
    jobs = broker.topic()
    broker.produce(b"old", timestamp_ms=broker.clock.now_ms() - 3_600_000)
    broker.produce(b"recent", timestamp_ms=broker.clock.now_ms() - 60_000)
    for reset, _values in (
        ("latest", [b"new"]),
        ("earliest", [b"old", b"recent", b"new"]),
        ("by_duration:PT10M", [b"recent", b"new"]),
    ):
        broker.set({"share.auto.offset.reset": reset}, group=reset[:8])
    consumers = {
        reset: broker.consumer(jobs, group=reset) for reset in ("latest", "earliest", "by_durat")
    }
    got = {reset: consumer.values() for reset, consumer in consumers.items()}
    broker.produce(b"new")
    for reset, consumer in consumers.items():
        got[reset] += consumer.values()
    assert got == {
        "latest": [b"new"],
        "earliest": [b"old", b"recent", b"new"],
        "by_durat": [b"recent", b"new"],
    }


def test_a_deleted_topic_ends_a_waiting_fetch(broker):
    from headwater.protocol.messages.delete_topics import (
        DeleteTopicsRequest,
        DeleteTopicsRequestDeleteTopicState,
    )

    jobs = broker.topic()
    broker.produce(b"a")
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0]
    consumer.send_fetch(max_wait_ms=3_000)
    state = DeleteTopicsRequestDeleteTopicState(name="jobs")
    broker.wire.ask(DeleteTopicsRequest(topics=[state], timeout_ms=1000), 6)
    assert acquired(consumer.receive_fetch()) == []
    answer = consumer.fetch()
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert broker.broker.running.broker.queues.describe(GROUP) == []


def test_records_that_retention_took_are_passed_over(broker):
    from headwater.protocol.messages.delete_records import (
        DeleteRecordsRequest,
        DeleteRecordsRequestDeleteRecordsPartition,
        DeleteRecordsRequestDeleteRecordsTopic,
    )

    jobs = broker.topic()
    for _ in range(4):
        broker.produce(b"x")
    consumer = broker.consumer(jobs)
    assert consumer.take(max_records=2) == [0, 1]
    part = DeleteRecordsRequestDeleteRecordsPartition(partition_index=0, offset=3)
    topic = DeleteRecordsRequestDeleteRecordsTopic(name="jobs", partitions=[part])
    broker.wire.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=1000), 2)
    assert consumer.take() == [3]
    assert consumer.acknowledge((0, 1, ACCEPT)) == 0  # too late, and no harm


def test_metrics(broker):
    from headwater.broker.monitoring.exposition import exposition

    jobs = broker.topic()
    broker.produce(b"a", b"b", b"c")
    consumer = broker.consumer(jobs)
    consumer.take()
    consumer.acknowledge((0, 1, [ACCEPT, REJECT]))
    wait_until(lambda: len(broker.letters()) == 1)
    running = broker.broker.running
    lines = (
        'headwater_queue_deliveries_total{group="workers"} 3',
        'headwater_queue_acknowledgements_total{group="workers",kind="accept"} 1',
        'headwater_queue_dead_letters_total{group="workers",topic="jobs"} 1',
        'headwater_queue_in_flight_records{group="workers"} 1',
    )

    def missing():
        """A letter is counted when the broker knows it to be on disk: after it can be read."""
        text = exposition(running.broker, running.server)
        return [line for line in lines if line not in text]

    wait_until(lambda: not missing())


def test_many_sessions_are_refused(broker, monkeypatch):
    from headwater.broker.queues import sessions

    monkeypatch.setattr(sessions, "MAX_SESSIONS", 1)
    jobs = broker.topic()
    one, other = broker.consumer(jobs), broker.consumer(jobs)
    assert one.fetch().error_code == 0
    assert other.fetch().error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert one.fetch(epoch=-1).error_code == 0
    assert other.fetch().error_code == 0


def test_a_session_moves_with_its_member_to_another_connection(broker):
    jobs = broker.topic()
    broker.produce(b"a")
    one, other = broker.consumer(jobs), broker.consumer(jobs)
    assert one.take() == [0]
    first = one.wire
    one.wire = Wire(broker.broker.bootstrap)
    assert one.take() == []
    first.close()
    other.take()
    broker.produce(b"b")  # behind the end of the connection
    assert other.take() == [1]
    assert one.acknowledge((0, 0, ACCEPT)) == 0


def test_topics_that_a_member_may_no_longer_read(broker, monkeypatch):
    jobs = broker.topic()
    broker.produce(b"a")
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0]
    authorizer = broker.broker.running.broker.authorizer

    def require(_, __, kind, *___, **____):
        if kind.name == "TOPIC":
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    monkeypatch.setattr(authorizer, "require", require)
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert consumer.acknowledge((0, 0, ACCEPT)) == refused
    assert consumer.fetch().responses[0].partitions[0].error_code == refused
    monkeypatch.undo()
    assert consumer.acknowledge((0, 0, ACCEPT)) == 0


def test_how_far_a_group_is_behind(broker):
    jobs = broker.topic()
    now_ms = broker.clock.now_ms()
    for _ in range(3):
        broker.produce(b"x" * 100, timestamp_ms=now_ms)
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0, 1, 2]
    assert consumer.acknowledge((1, 1, ACCEPT)) == 0
    broker.broker.advance(20)
    meter = broker.broker.running.broker.lag

    def lag():
        [lag] = [lag for lag in meter.lags() if lag.group == GROUP]
        return lag

    wait_until(lambda: lag().seconds)
    size_bytes = broker.broker.running.store.partitions["jobs", 0].size_bytes
    assert (lag().records, lag().size_bytes, lag().seconds) == (2, size_bytes, 20.0)
    assert consumer.acknowledge((0, 0, ACCEPT), (2, 2, ACCEPT)) == 0
    assert lag().records == 0
    for loaded in broker.broker.running.broker.queues._loaded:
        loaded.clear()
    assert list(meter.lags()) == []  # half loaded, it would seem far behind


def test_a_producer_that_is_held_back_goes_on_when_the_queue_has_been_worked_off(broker):
    jobs = broker.topic()
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=2,
        resource_name="jobs",
        configs=[
            IncrementalAlterConfigsRequestAlterableConfig(
                name=f"headwater.overload.{name}", config_operation=0, value=value
            )
            for name, value in (("policy", "backpressure"), ("group", GROUP), ("bytes", "10000"))
        ],
    )
    answer = broker.wire.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0
    consumer = broker.consumer(jobs)
    assert consumer.take() == []
    broker.produce(b"x" * 9_000)
    broker.wire.send(produce_request("jobs", batch_of(b"x" * 9_000)), 9)
    held = broker.broker.running.broker.metrics.held_back_looks
    wait_until(lambda: held["jobs"])
    assert consumer.take() == [0]
    assert consumer.acknowledge((0, 0, ACCEPT)) == 0
    # The clock stands still: no fetch has looked again by itself.
    assert broker.wire.receive().responses[0].partition_responses[0].base_offset == 1


def test_what_is_delivered_counts_against_the_quota(broker):
    jobs = broker.topic()
    entity = AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name="wire")
    op = AlterClientQuotasRequestOpData(key="consumer_byte_rate", value=10_000.0)
    entry = AlterClientQuotasRequestEntryData(entity=[entity], ops=[op])
    assert broker.wire.ask(AlterClientQuotasRequest(entries=[entry]), 1).entries[0].error_code == 0
    broker.produce(b"x" * 20_000)
    answer = broker.consumer(jobs).fetch()
    assert acquired(answer) == [0]
    assert 900 <= answer.throttle_time_ms <= 1_200
