import asyncio

import pytest

from headwater.broker.topic_changes import MAX_PARTITIONS_PER_REQUEST
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableReplicaAssignment,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsRequestCreatableTopicConfig,
)
from headwater.protocol.primitives import NIL_UUID


def wanted(name, partitions=1, replication_factor=1, *, configs=(), assignments=()):
    return CreateTopicsRequestCreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[
            CreateTopicsRequestCreatableTopicConfig(name=key, value=value)
            for key, value in dict(configs).items()
        ],
        assignments=[
            CreateTopicsRequestCreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in assignments
        ],
    )


def create(asked, *topics, version=7, validate_only=False):
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    return asked.ask(request, version).topics


def code_of(asked, topic, **options):
    (result,) = create(asked, topic, **options)
    assert (result.error_message is None) == (result.error_code == 0)
    return ErrorCode(result.error_code)


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_there_when_the_answer_comes(asked, version):
    configs = {"retention.ms": "5000"}
    (result,) = create(asked, wanted("orders", 4, configs=configs), version=version)

    assert (result.name, result.error_code, result.error_message) == ("orders", 0, None)
    topic = asked.broker.topic("orders")
    assert (topic.partitions, topic.configs) == (4, configs)
    assert len([key for key in asked.store.partitions if key[0] == "orders"]) == 4
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (4, 1)
        configs = {config.name: config for config in result.configs}
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5000", 1)
        assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == (
            "delete",
            5,
        )
        assert list(configs) == sorted(configs)
    assert result.topic_id == (topic.id if version >= 7 else NIL_UUID)


def test_a_topic_survives_a_restart(asked):
    create(asked, wanted("orders", 2))
    asked.reopen()
    assert asked.broker.topic("orders").partitions == 2


def test_validate_only_checks_and_makes_nothing(asked):
    good, bad = create(asked, wanted("good", 2), wanted("bad", 0), validate_only=True)
    assert (good.error_code, good.num_partitions, good.topic_id) == (0, 2, NIL_UUID)
    assert bad.error_code == ErrorCode.INVALID_PARTITIONS
    assert asked.broker.topic("good") is None


def test_minus_one_takes_the_brokers_defaults(asked):
    (result,) = create(asked, wanted("orders", -1, -1))
    assert (result.num_partitions, result.replication_factor) == (3, 1)


def test_a_topic_that_exists_is_left_as_it_is(asked):
    asked.topic("orders", 2)
    assert code_of(asked, wanted("orders", 5)) is ErrorCode.TOPIC_ALREADY_EXISTS
    assert asked.broker.topic("orders").partitions == 2


def test_a_name_given_twice_is_refused_once_and_the_rest_goes_on(asked):
    results = create(asked, wanted("twice"), wanted("once"), wanted("twice", 2))
    assert {result.name: result.error_code for result in results} == {
        "twice": ErrorCode.INVALID_REQUEST,
        "once": 0,
    }
    assert asked.broker.topic("twice") is None


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250, "a\n"])
def test_names_that_cannot_be_one(asked, name):
    assert code_of(asked, wanted(name)) is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["__transaction_state", "__share_group_state"])
def test_a_coordinators_topic_is_the_brokers_to_make(asked, name):
    assert code_of(asked, wanted(name)) is ErrorCode.INVALID_REQUEST
    assert asked.broker.topic(name) is None


def test_names_that_differ_in_dots_and_underscores_only(asked):
    asked.topic("a.b_c")
    (result,) = create(asked, wanted("a_b.c"))
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "a.b_c" in result.error_message
    first, second = create(asked, wanted("x.y"), wanted("x_y"))
    assert (first.error_code, second.error_code) == (0, ErrorCode.INVALID_TOPIC_EXCEPTION)


@pytest.mark.parametrize(
    ("partitions", "replication_factor", "code"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS),
        (-2, 1, ErrorCode.INVALID_PARTITIONS),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, -2, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, 2, ErrorCode.INVALID_REPLICATION_FACTOR),
        (2**31 - 1, 1, ErrorCode.INVALID_PARTITIONS),
    ],
)
def test_numbers_that_cannot_be(asked, partitions, replication_factor, code):
    assert code_of(asked, wanted("orders", partitions, replication_factor)) is code
    assert asked.broker.topic("orders") is None


def test_the_bound_holds_for_the_whole_request(asked):
    half = MAX_PARTITIONS_PER_REQUEST // 2
    topics = [wanted("a", half), wanted("b", half), wanted("c", 1)]
    results = create(asked, *topics, validate_only=True)
    codes = [result.error_code for result in results]
    assert codes == [0, 0, ErrorCode.INVALID_PARTITIONS]
    assert str(MAX_PARTITIONS_PER_REQUEST) in results[2].error_message


def test_assigned_replicas(asked):
    assignments = [(1, [1]), (0, [1])]
    (result,) = create(asked, wanted("orders", -1, -1, assignments=assignments))
    assert (result.error_code, result.num_partitions) == (0, 2)


@pytest.mark.parametrize(
    ("assignments", "partitions", "code"),
    [
        ([(0, [2])], -1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1, 2])], -1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1, 1])], -1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [])], -1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(1, [1])], -1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1]), (0, [1])], -1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(-1, [1])], -1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1])], 1, ErrorCode.INVALID_REQUEST),
    ],
)
def test_assignments_that_cannot_be(asked, assignments, partitions, code):
    assert code_of(asked, wanted("orders", partitions, -1, assignments=assignments)) is code


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "soon"),
        ("cleanup.policy", "burn"),
        ("no.such.setting", "1"),
        ("retention.ms", None),
    ],
)
def test_a_wrong_setting_is_named(asked, name, value):
    (result,) = create(asked, wanted("orders", configs={name: value}))
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert name in result.error_message
    assert asked.broker.topic("orders") is None


@pytest.mark.parametrize("version", [4, 7])
def test_a_message_never_outgrows_its_string(asked, version):
    configs = {"retention.ms": "9" * 32_000}
    (result,) = create(asked, wanted("orders", configs=configs), version=version)
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert len(result.error_message) <= 1000


def test_a_full_disk_is_a_storage_error_and_passes(asked):
    asked.files.is_full = True
    assert code_of(asked, wanted("orders")) is ErrorCode.KAFKA_STORAGE_ERROR
    assert asked.broker.topic("orders") is None
    asked.files.is_full = False
    assert code_of(asked, wanted("orders")) is ErrorCode.NONE


def test_of_two_who_create_one_topic_one_succeeds(asked):
    request = CreateTopicsRequest(topics=[wanted("orders")])
    answers = asked.ask_at_once(request, request, version=7)
    codes = sorted(answer.topics[0].error_code for answer in answers)
    assert codes == [0, ErrorCode.TOPIC_ALREADY_EXISTS]


def test_a_client_that_goes_away_leaves_no_half_topic(asked):
    async def ask_and_go() -> None:
        request = CreateTopicsRequest(topics=[wanted("orders", 2)])
        task = asyncio.create_task(asked.call(request, 7))
        await asyncio.sleep(0)  # the request has begun
        task.cancel()
        while ("orders", 1) not in asked.store.partitions:
            await asyncio.sleep(0.001)
        assert task.cancelled()

    asked.runner.run(ask_and_go())
    assert asked.broker.topic("orders").partitions == 2
