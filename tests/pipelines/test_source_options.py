"""What can be set for the source, how much a micro-batch has, and who reads what: no Spark."""

import json
import os

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headwater.client.reading.fetching import EARLIEST, LATEST
from headwater.errors import ConfigError
from headwater.pipelines.source.admission import admit
from headwater.pipelines.source.batch import split
from headwater.pipelines.source.data_source import HeadwaterDataSource
from headwater.pipelines.source.kafka_connector import connector_options
from headwater.pipelines.source.options import read_options


def test_a_mistake_in_the_driver_hides_no_traceback_of_workers_that_start_later() -> None:
    with pytest.raises(ConfigError, match="no option"):
        HeadwaterDataSource({"bootstrap": "a:1", "topics": "x"}).schema()
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


def test_options_are_read() -> None:
    options = read_options(
        {
            "bootstrap": "a:1,b:2",
            "topic": "orders, customers",
            "start": "@2026-03-01T12:00:00+01:00",
            "end": '{"orders": {"0": 5, "11": 7}}',
            "max_bytes": "1MiB",
            "headers": "true",
            "client.username": "me",
            "client.password": "hush",
        }
    )
    assert options.topic == ("orders", "customers")
    assert options.start == 1772362800000
    assert options.end == {("orders", 0): 5, ("orders", 11): 7}
    assert options.max_bytes == 1 << 20
    assert options.client.username == "me"
    assert "hush" not in repr(options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "which topics to read is not clear: none is named"),
        ({"topic": "a", "pattern": "b"}, "both topic and pattern"),
        ({"topic": "a", "topics": "b"}, 'no option "topics"'),
        ({"topic": "a", "max_rows": "0"}, '"max_rows" is wrong: 0'),
        ({"topic": "a", "start": "yesterday"}, '"start" is wrong: yesterday'),
        ({"topic": "a", "start": "@yesterday"}, '"start" is wrong'),
        ({"topic": "a", "start": "[1]"}, '"start" is wrong'),
        ({"topic": "a", "on_lost": "ignore"}, '"on_lost" is wrong'),
        ({"topic": "a", "value": "xml"}, '"value" is wrong'),
        ({"topic": "a", "bootstrap": "here"}, '"bootstrap" is wrong'),
        ({"pattern": "("}, '"pattern" is wrong'),
        ({"topic": "a", "client.user": "me"}, 'no option "client.user"'),
    ],
)
def test_a_mistake_is_named(given, message) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        read_options(given)


def test_a_wrong_password_option_is_not_shown() -> None:
    with pytest.raises(ConfigError) as failed:
        read_options({"topic": "a", "client.password": ""})
    assert failed.value.detail == ""


def test_schema_of_decoded_values_has_what_decoding_adds() -> None:
    columns = StructType([StructField("id", LongType(), False), StructField("name", StringType())])
    source = HeadwaterDataSource({"topic": "a", "value": "json", "schema": columns.json()})
    assert source.schema().names == ["id", "name", "_op", "_at", "_position"]
    with pytest.raises(ConfigError, match="columns of json values are missing"):
        HeadwaterDataSource({"topic": "a", "value": "json"}).schema()
    with pytest.raises(ConfigError, match="not Spark's JSON"):
        HeadwaterDataSource({"topic": "a", "value": "json", "schema": "id long"}).schema()


A, B, C = ("t", 0), ("t", 1), ("u", 0)


def size_of(topic: str) -> float:
    return {"t": 100.0, "u": 1000.0}[topic]


def test_everything_is_admitted_while_it_fits() -> None:
    start, end = {A: 5, B: 0, C: 7}, {A: 10, B: 3, C: 7}
    assert admit(start, end, 8, 1 << 30, size_of) == end
    assert admit(end, end, 1, 1, size_of) == end


def test_rows_are_shared_by_what_is_there() -> None:
    assert admit({A: 0, B: 0, C: 4}, {A: 900, B: 100, C: 4}, 100, 1 << 30, size_of) == {
        A: 90,
        B: 10,
        C: 4,
    }


def test_bytes_are_bounded_and_no_partition_starves() -> None:
    found = admit({A: 0, C: 0}, {A: 1_000_000, C: 5}, 1 << 40, 1_000_000, size_of)
    assert found[C] == 1
    assert 9_000 <= found[A] <= 10_000


def test_a_long_offset_range_is_split_in_order() -> None:
    assert split("t", 0, 5, 5) == []
    assert [part.value for part in split("t", 0, 5, 9)] == [("t", 0, 5, 9)]
    parts = split("t", 1, 3, 1_700_000)
    assert parts[0].start == 3
    assert parts[-1].end == 1_700_000
    assert [part.end for part in parts[:-1]] == [part.start for part in parts[1:]]
    assert len(parts) == 4
    assert len(split("t", 1, 0, 10**10)) == 200


def test_options_for_sparks_own_connector() -> None:
    given = {
        "bootstrap": "a:1",
        "topic": "x,y",
        "start": '{"x": {"0": 3}}',
        "client.username": 'a"b',
        "client.password": "hush",
        "client.sasl_mechanism": "PLAIN",
    }
    chosen = connector_options(read_options(given), streaming=True)
    assert chosen["subscribe"] == "x,y"
    assert json.loads(chosen["startingOffsets"]) == {"x": {"0": 3}}
    assert chosen["kafka.security.protocol"] == "SASL_PLAINTEXT"
    assert chosen["kafka.sasl.jaas.config"].endswith('username="a\\"b" password="hush";')
    assert chosen["failOnDataLoss"] == "true"
    batch = connector_options(
        read_options({"pattern": "x.*", "end": "@2026-01-01"}), streaming=False
    )
    assert batch["subscribePattern"] == "x.*"
    assert batch["startingOffsets"] == "earliest"
    assert batch["endingTimestamp"] == "1767225600000"


def test_places_by_name() -> None:
    assert read_options({"topic": "a"}).start == EARLIEST
    assert read_options({"topic": "a"}).end == LATEST
    assert read_options({"topic": "a", "start": "latest"}).start == LATEST
