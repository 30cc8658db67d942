"""Spark's own parts in the Spark that ours run in: the Kafka connector, the JDBC writer."""

from typing import TYPE_CHECKING

import headwater as hw
from bench.peers.provision import postgresql_jdbc_jars, spark_connector_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "Spark 4.2.0"


def spark_for_both() -> "SparkSession":
    """The one of this process, with the jars of Spark's own parts."""
    jars = [*spark_connector_jars(), *postgresql_jdbc_jars()]
    session = hw.spark("bench", "local[2]", jars=jars, **{"spark.driver.memory": "2g"})
    session.sparkContext.setLogLevel("ERROR")  # brokers that are gone would be warned of for ever
    return session
