"""Transactions as producers and readers see them: begun, committed, aborted, fenced."""

import asyncio

import pytest
from support.broker.txn_harness import Producer

from headwater.broker.transactions import State, markers
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.produce import ProduceRequestTopicProduceData


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(cluster, producer):
    assert producer.send("t", b"a", b"b") == 0
    assert producer.send("u", b"c", partition=1) == 0
    assert cluster.committed("t") == []
    assert producer.commit() == 0
    assert cluster.committed("t") == [b"a", b"b"]
    assert cluster.committed("u", 1) == [b"c"]
    assert producer.send("t", b"dropped") == 0
    assert producer.abort() == 0
    assert producer.send("t", b"d") == 0
    assert producer.commit() == 0
    assert cluster.committed("t") == [b"a", b"b", b"d"]
    assert [committed for _, _, committed in cluster.markers("t")] == [True, False, True]
    assert cluster.markers("t", 1) == []


def test_the_state_is_written_before_each_step(cluster, producer):
    producer.send("t", b"a")
    producer.send("t", b"b")
    producer.send("u", b"c")
    producer.commit()
    assert cluster.stored_states("payments") == [
        State.EMPTY,
        State.ONGOING,
        State.ONGOING,  # the second partition
        State.PREPARE_COMMIT,
        State.COMPLETE_COMMIT,
    ]


def test_a_transaction_ends_with_a_new_epoch_for_clients_that_know_of_it(cluster):
    old, new = Producer(cluster, "old", has_kip_890=False), Producer(cluster, "new")
    for producer in (old, new):
        producer.init()
        assert producer.epoch == 0
        producer.send("t", b"x")
        producer.commit()
    assert (old.epoch, new.epoch) == (0, 1)
    assert [epoch for _, epoch, _ in cluster.markers("t")] == [0, 1]
    late = new.produce_request("t", b"late", sequence=1)
    new.epoch = 0
    late = new.produce_request("t", b"late", sequence=1)
    (answer,) = cluster.ask(late, 12).responses[0].partition_responses
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_newer_producer_fences_the_older_one(cluster, producer):
    assert producer.send("t", b"zombie") == 0
    other = Producer(cluster, "payments", has_kip_890=producer.has_kip_890)
    assert other.init() == 0
    assert other.producer_id == producer.producer_id
    assert other.epoch > producer.epoch
    assert cluster.markers("t") == [(producer.producer_id, producer.epoch + 1, False)]
    assert other.send("t", b"mine") == 0
    assert producer.send_only("t", b"zombie") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.add(("t", 1)) == ErrorCode.PRODUCER_FENCED
    assert producer.commit() == ErrorCode.PRODUCER_FENCED
    assert producer.abort() == ErrorCode.PRODUCER_FENCED
    assert producer.send_offsets("g", {("u", 0): 1}) in (
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    )
    assert producer.init(recover=True) == ErrorCode.PRODUCER_FENCED
    assert other.commit() == 0
    assert cluster.committed("t") == [b"mine"]


@pytest.mark.parametrize(
    ("request_of", "version", "first_new"),
    [
        (lambda p: p.init_request(recover=True), 3, 4),
        (lambda p: p.add_request(("t", 0)), 1, 2),
        (lambda p: p.end_request(commit=True), 1, 2),
    ],
)
def test_older_clients_know_the_fence_by_another_code(cluster, request_of, version, first_new):
    zombie = Producer(cluster, "payments", has_kip_890=False)
    zombie.init()
    Producer(cluster, "payments").init()

    def code(version: int) -> int:
        answer = cluster.ask(request_of(zombie), version)
        if hasattr(answer, "error_code"):
            return (
                answer.error_code
                or answer.results_by_topic_v3_and_below[0]
                .results_by_partition[0]
                .partition_error_code
            )
        return answer.error_code

    assert code(version) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert code(first_new) == ErrorCode.PRODUCER_FENCED


def test_who_is_unknown(cluster, producer):
    stranger = Producer(cluster, "nobody", has_kip_890=producer.has_kip_890)
    stranger.producer_id, stranger.epoch = producer.producer_id, producer.epoch
    assert stranger.commit() == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert stranger.add(("t", 0)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert stranger.send_only("t", b"x") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer.producer_id += 1
    assert producer.send_only("t", b"x") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert producer.commit() == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert cluster.committed("t") == []


@pytest.mark.parametrize(
    ("version", "code"),
    [(9, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE), (12, 0), (13, 0)],
)
def test_older_clients_add_a_partition_before_they_write_to_it(cluster, version, code):
    producer = Producer(cluster, "payments")
    producer.init()
    request = producer.produce_request("t", b"x")
    request.topic_data = [
        ProduceRequestTopicProduceData(
            name="t",
            topic_id=cluster.broker.topic("t").id,
            partition_data=request.topic_data[0].partition_data,
        )
    ]
    (answer,) = cluster.ask(request, version).responses[0].partition_responses
    assert answer.error_code == code
    assert cluster.state("payments") is (State.EMPTY if code else State.ONGOING)


def test_a_transactional_batch_needs_a_transactional_id(cluster, producer):
    producer.add(("t", 0))
    request = producer.produce_request("t", b"x")
    request.transactional_id = None
    (answer,) = cluster.ask(request, 11).responses[0].partition_responses
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_all_partitions_are_added_or_none(cluster, producer):
    answer = cluster.ask(producer.add_request(("t", 0), ("t", 9), ("nowhere", 0)), 3)
    found = {
        (topic.name, result.partition_index): ErrorCode(result.partition_error_code)
        for topic in answer.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    }
    assert found == {
        ("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert cluster.state("payments") is State.EMPTY


def test_the_coordinators_topics_are_not_to_be_written_to(cluster, producer):
    assert producer.add(("__transaction_state", 0)) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert producer.send_only("__transaction_state", b"x") == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_beyond_the_limits_is_refused(cluster, timeout_ms):
    producer = Producer(cluster, "payments")
    assert producer.init(timeout_ms=timeout_ms) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert producer.init(timeout_ms=900_000) == 0


def test_an_empty_transactional_id_is_refused(cluster):
    producer = Producer(cluster, "")
    assert producer.init() == ErrorCode.INVALID_REQUEST
    assert producer.commit() == ErrorCode.INVALID_REQUEST
    assert producer.add(("t", 0)) == ErrorCode.INVALID_REQUEST


def test_a_producer_that_goes_on_after_an_error_gets_the_next_epoch(cluster, producer):
    before = producer.epoch
    asked = producer.init_request(recover=True)
    first = cluster.ask(asked, 4)
    again = cluster.ask(asked, 4)  # the answer was lost
    assert (first.producer_id, first.producer_epoch) == (producer.producer_id, before + 1)
    assert (again.producer_id, again.producer_epoch) == (first.producer_id, first.producer_epoch)
    asked.producer_epoch = -1
    assert cluster.ask(asked, 4).error_code == ErrorCode.INVALID_REQUEST


def test_a_producer_that_goes_on_in_the_middle_aborts_what_it_began(cluster, producer):
    producer.send("t", b"x")
    asked = producer.init_request(recover=True)
    assert producer.init(recover=True) == 0
    again = cluster.ask(asked, 4)
    assert (again.producer_id, again.producer_epoch) == (producer.producer_id, producer.epoch)
    assert producer.send("t", b"y") == 0
    assert producer.commit() == 0
    assert cluster.committed("t") == [b"y"]


def test_two_producers_that_come_at_once(cluster):
    one, two = Producer(cluster, "payments"), Producer(cluster, "payments")
    answers = cluster.at_once(
        *(cluster.call(producer.init_request(), 5) for producer in (one, two))
    )
    codes = sorted(answer.error_code for answer in answers)
    assert codes == [0, ErrorCode.CONCURRENT_TRANSACTIONS]
    assert [answer.producer_epoch for answer in answers if not answer.error_code] == [0]


class TestRepeatedEnd:
    @pytest.mark.parametrize("commit", [True, False])
    def test_gets_the_same_answer(self, cluster, producer, commit):
        producer.send("t", b"x")
        request, version = producer.end_request(commit=commit), 5 if producer.has_kip_890 else 4
        first, again = (cluster.ask(request, version) for _ in range(2))
        assert (first.error_code, again.error_code) == (0, 0)
        if producer.has_kip_890:
            assert first.producer_epoch == again.producer_epoch == producer.epoch + 1
        assert len(cluster.markers("t")) == 1

    @pytest.mark.parametrize("commit", [True, False])
    def test_cannot_turn_into_the_opposite(self, cluster, producer, commit):
        producer.send("t", b"x")
        version = 5 if producer.has_kip_890 else 4
        assert cluster.ask(producer.end_request(commit=commit), version).error_code == 0
        opposite = cluster.ask(producer.end_request(commit=not commit), version)
        assert opposite.error_code == ErrorCode.INVALID_TXN_STATE

    def test_while_the_first_is_in_work(self, cluster, producer):
        producer.send("t", b"x")
        request, version = producer.end_request(commit=True), 5 if producer.has_kip_890 else 4
        answers = cluster.at_once(*(cluster.call(request, version) for _ in range(3)))
        codes = sorted(answer.error_code for answer in answers)
        assert codes == [0] + [ErrorCode.CONCURRENT_TRANSACTIONS] * 2
        assert len(cluster.markers("t")) == 1


def test_nothing_to_end(cluster, producer):
    assert producer.commit() == ErrorCode.INVALID_TXN_STATE
    if not producer.has_kip_890:
        assert producer.abort() == ErrorCode.INVALID_TXN_STATE
        return
    # KIP-890: late batches of the epoch that is given up must not begin the next transaction.
    before = producer.epoch
    request = producer.end_request(commit=False)
    for _ in range(2):
        answer = cluster.ask(request, 5)
        assert (answer.error_code, answer.producer_epoch) == (0, before + 1)
    producer.epoch = before + 1
    assert producer.abort() == 0
    assert producer.epoch == before + 2
    assert producer.commit() == ErrorCode.INVALID_TXN_STATE


class TestEpochsUsedUp:
    LAST = 2**15 - 2

    def _at_the_last_epoch(self, cluster, *, has_kip_890):
        producer = Producer(cluster, "payments", has_kip_890=has_kip_890)
        producer.init()
        cluster.broker.transactions.transaction("payments").epoch = self.LAST
        producer.epoch = self.LAST
        return producer

    def test_a_new_producer_gets_a_new_id(self, cluster):
        producer = self._at_the_last_epoch(cluster, has_kip_890=False)
        old_id = producer.producer_id
        asked = producer.init_request(recover=True)
        assert producer.init(recover=True) == 0
        assert producer.producer_id != old_id
        assert producer.epoch == 0
        again = cluster.ask(asked, 4)
        assert (again.producer_id, again.producer_epoch) == (producer.producer_id, 0)

    def test_an_open_transaction_is_fenced_with_the_epoch_reserved_for_that(self, cluster):
        producer = self._at_the_last_epoch(cluster, has_kip_890=False)
        old_id = producer.producer_id
        producer.send("t", b"x")
        other = Producer(cluster, "payments")
        assert other.init() == 0
        assert cluster.markers("t") == [(old_id, self.LAST + 1, False)]
        assert other.producer_id != old_id
        assert other.epoch == 0

    def test_the_end_of_a_transaction_gives_a_new_id(self, cluster):
        producer = self._at_the_last_epoch(cluster, has_kip_890=True)
        old_id = producer.producer_id
        producer.send("t", b"x")
        request = producer.end_request(commit=True)
        assert producer.commit() == 0
        assert producer.producer_id != old_id
        assert producer.epoch == 0
        assert cluster.markers("t") == [(old_id, self.LAST + 1, True)]
        again = cluster.ask(request, 5)
        assert (again.error_code, again.producer_id) == (0, producer.producer_id)
        assert producer.send("t", b"y") == 0
        assert producer.commit() == 0
        assert cluster.committed("t") == [b"x", b"y"]


def test_many_producers_interleaved(cluster):
    producers = [Producer(cluster, f"p{n}", has_kip_890=n % 2 == 0) for n in range(6)]
    for producer in producers:
        producer.init()
    expected = []
    for round_ in range(4):
        for n, producer in enumerate(producers):
            assert producer.send("t", f"{n}.{round_}".encode()) == 0
        assert cluster.committed("t") == expected
        for n, producer in enumerate(producers):
            commits = (n + round_) % 3 != 0
            assert producer.end(commit=commits) == 0
        expected += [f"{n}.{round_}".encode() for n in range(6) if (n + round_) % 3 != 0]
        assert cluster.committed("t") == expected


def test_a_topic_that_is_deleted_in_the_middle_does_not_hold_up_the_end(cluster, producer):
    producer.send("t", b"x")
    producer.send("u", b"y")
    cluster.runner.run(cluster.broker.delete_topic("u"))
    assert producer.commit() == 0
    assert cluster.committed("t") == [b"x"]
    assert cluster.state("payments") is State.COMPLETE_COMMIT


def test_partitions_that_join_together_take_one_record(cluster):
    producer = Producer(cluster, "payments")
    producer.init()
    request = producer.produce_request("t", b"0")
    for partition in (1, 2):
        another = producer.produce_request("t", b"%d" % partition, partition=partition)
        request.topic_data[0].partition_data.extend(another.topic_data[0].partition_data)
    answer = cluster.ask(request, 12)
    assert [partition.error_code for partition in answer.responses[0].partition_responses] == [
        0,
        0,
        0,
    ]
    assert cluster.stored_states("payments") == [State.EMPTY, State.ONGOING]
    assert producer.commit() == 0
    assert [cluster.committed("t", p) for p in range(3)] == [[b"0"], [b"1"], [b"2"]]


@pytest.mark.parametrize("leaves", ["add", "offsets"])
def test_a_client_that_disconnects_does_not_affect_other_clients(cluster, producer, leaves):
    """Two requests join in the same turn; the first one's connection ends."""
    leaving = {
        "add": (producer.add_request(("t", 1), ("t", 0)), 3),
        "offsets": (producer.offsets_request("g", {("t", 0): 1}), 5),
    }[leaves]

    async def both():
        first = asyncio.ensure_future(cluster.call(*leaving))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(cluster.call(producer.produce_request("t", b"x"), 12))
        await asyncio.sleep(0)
        first.cancel()
        return await asyncio.wait_for(second, 60)

    (answer,) = cluster.runner.run(both()).responses[0].partition_responses
    assert answer.error_code == 0
    assert producer.commit() == 0
    assert cluster.committed("t") == [b"x"]


def test_partitions_that_join_while_a_record_is_on_its_way_take_one_more(cluster):
    """Each record lists every partition: a thousand of them must not take a thousand records."""
    cluster.topic("wide", 40)
    producer = Producer(cluster, "payments")
    producer.init()
    cluster.files.held = "__transaction_state"

    async def join_one_by_one():
        answers = []
        for partition in range(40):
            request = producer.produce_request("wide", b"x", partition=partition)
            answers.append(asyncio.ensure_future(cluster.call(request, 12)))
            for _ in range(5):
                await asyncio.sleep(0)
        assert not any(answer.done() for answer in answers)
        cluster.files.repair()
        return await asyncio.gather(*answers)

    for answer in cluster.runner.run(asyncio.wait_for(join_one_by_one(), 60)):
        assert answer.responses[0].partition_responses[0].error_code == 0
    assert cluster.stored_states("payments") == [State.EMPTY, State.ONGOING, State.ONGOING]
    cluster.restart(crash=True)  # both together name them all
    assert len(cluster.broker.transactions.transaction("payments").partitions) == 40
    assert producer.commit() == 0
    assert [cluster.committed("wide", p) for p in range(40)] == [[b"x"]] * 40


def test_the_end_of_a_large_transaction_lets_others_have_their_turn(cluster, monkeypatch):
    monkeypatch.setattr(markers, "PER_TURN", 10)
    cluster.topic("wide", 50)
    producer = Producer(cluster, "payments", has_kip_890=False)
    producer.init()
    assert producer.add(*(("wide", index) for index in range(50))) == 0
    turns, seen = 0, []
    append = cluster.broker.markers.append

    def recorded(*args):
        seen.append(turns)
        return append(*args)

    monkeypatch.setattr(cluster.broker.markers, "append", recorded)

    async def count_turns():
        nonlocal turns
        ending = asyncio.ensure_future(cluster.call(producer.end_request(commit=True), 4))
        while not ending.done():
            turns += 1
            await asyncio.sleep(0)
        return ending.result()

    assert cluster.runner.run(asyncio.wait_for(count_turns(), 60)).error_code == 0
    assert [seen.count(turn) for turn in sorted(set(seen))] == [10] * 5
    assert all(len(cluster.markers("wide", index)) == 1 for index in range(50))


def test_a_new_id_that_the_disk_refused_is_given_to_no_producer(cluster):
    """Of the producers that come while that is found out, none becomes what was not stored."""
    for attempt in range(8):
        producer = Producer(cluster, f"new-{attempt}")
        cluster.files.fail_syncs(1)

        async def init_in_every_turn(producer=producer):
            first = asyncio.ensure_future(cluster.call(producer.init_request(), 5))
            answers = [first]
            while not first.done():
                answers.append(asyncio.ensure_future(cluster.call(producer.init_request(), 5)))
                await asyncio.sleep(0)
            return await asyncio.gather(*answers)

        for answer in cluster.runner.run(asyncio.wait_for(init_in_every_turn(), 60)):
            assert answer.error_code or answer.producer_id >= 0
        cluster.files.repair()


def test_batches_behind_one_that_was_refused_are_refused_too(cluster):
    """A client has several on their way; taken in, the second would shut out the first."""
    producer = Producer(cluster, "payments")
    producer.init()
    producer.send("t", b"a")
    cluster.files.refused = "/t-0/"
    assert producer.commit() == 0
    first = producer.produce_request("u", b"1", sequence=0)
    second = producer.produce_request("u", b"2", sequence=1)

    def answer_to(request):
        return cluster.ask(request, 12).responses[0].partition_responses[0].error_code

    assert answer_to(first) == ErrorCode.CONCURRENT_TRANSACTIONS
    cluster.files.repair()
    cluster.until(
        lambda: cluster.clock.advance(0.5) or cluster.state("payments") is State.COMPLETE_COMMIT
    )
    assert answer_to(second) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert answer_to(first) == 0
    assert answer_to(second) == 0
    assert producer.commit() == 0
    assert cluster.committed("u") == [b"1", b"2"]


def test_an_older_client_goes_on_where_the_partition_has_forgotten_it(cluster):
    """Its sequences do not begin again with a transaction, and what is idle is forgotten."""
    producer = Producer(cluster, "payments", has_kip_890=False)
    producer.init()
    producer.send("t", b"a")
    assert producer.commit() == 0
    cluster.store.partitions["t", 0].expire_producers(cluster.clock.now_ms() + 1)
    assert producer.send("t", b"b") == 0
    assert producer.commit() == 0
    assert cluster.committed("t") == [b"a", b"b"]


class TestJoiningWhileARecordIsOnItsWay:
    """The second partition's record waits for the first one's."""

    def _join_two(self, cluster, producer):
        async def join():
            answers = []
            for partition in (0, 1):
                request = producer.produce_request("t", b"x", partition=partition)
                answers.append(asyncio.ensure_future(cluster.call(request, 12)))
                for _ in range(5):
                    await asyncio.sleep(0)
            return answers

        cluster.files.held = "__transaction_state"
        return cluster.runner.run(join())

    def test_the_end_comes_behind_both_in_the_log(self, cluster):
        producer = Producer(cluster, "payments")
        producer.init()
        answers = self._join_two(cluster, producer)

        async def end():
            ending = asyncio.ensure_future(cluster.call(producer.end_request(commit=True), 5))
            for _ in range(5):
                await asyncio.sleep(0)
            cluster.files.repair()
            await asyncio.gather(*answers)
            return await ending

        assert cluster.runner.run(asyncio.wait_for(end(), 60)).error_code == 0
        assert cluster.stored_states("payments") == [
            State.EMPTY,
            State.ONGOING,
            State.ONGOING,
            State.PREPARE_COMMIT,
            State.COMPLETE_COMMIT,
        ]
        assert [cluster.committed("t", p) for p in (0, 1)] == [[b"x"], [b"x"]]

    def test_if_the_first_fails_both_are_answered(self, cluster):
        producer = Producer(cluster, "payments")
        producer.init()
        answers = self._join_two(cluster, producer)
        cluster.files.refused, cluster.files.held = "__transaction_state", ""

        async def answered():
            return await asyncio.gather(*answers)

        for answer in cluster.runner.run(asyncio.wait_for(answered(), 60)):
            (partition,) = answer.responses[0].partition_responses
            assert partition.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        cluster.files.repair()
        assert [producer.send("t", b"x", partition=p) for p in (0, 1)] == [0, 0]
        assert producer.commit() == 0
        assert [cluster.committed("t", p) for p in (0, 1)] == [[b"x"], [b"x"]]
