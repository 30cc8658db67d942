"""Pipelines on Spark: what goes in, what comes out, how soon; ours beside Spark's own."""

from collections.abc import Callable

from bench import micro_batches, postgres_sink, spark_source, topic_sink
from bench.derived_latency import derived_latency
from bench.peers import headwater, kafka
from bench.peers.headwater import NAME
from bench.rounds import Figures, alternate

Part = Callable[[int, Figures], None]


def parts(*, quick: bool) -> dict[str, Part]:
    """Each takes the number of rounds, and the figures to add to. Those that run in other
    processes come first: later ones leave a Spark in this process.
    """
    share = 4 if quick else 1

    def latency(_rounds: int, figures: Figures) -> None:
        alternate({NAME: lambda: derived_latency(40 // share)}, 1, figures)

    def floors(_rounds: int, figures: Figures) -> None:
        micro_batches.floors(1, figures)

    def source(rounds: int, figures: Figures) -> None:
        spark_source.measure(kafka.NAME, 3_000_000 // share, min(rounds, 3), figures)

    def source_on_ours(_rounds: int, figures: Figures) -> None:
        spark_source.measure(headwater.NAME, 3_000_000 // share, 1, figures)

    def into_topics(rounds: int, figures: Figures) -> None:
        topic_sink.measure(kafka.NAME, 1_000_000 // share, rounds, figures)

    def into_postgres(rounds: int, figures: Figures) -> None:
        postgres_sink.measure(300_000 // share, min(rounds, 3), figures)

    return {
        "latency to PostgreSQL": latency,
        "floors of a micro-batch": floors,
        "source on Kafka": source,
        "source on Headwater": source_on_ours,
        "topic sink": into_topics,
        "PostgreSQL sink": into_postgres,
    }
