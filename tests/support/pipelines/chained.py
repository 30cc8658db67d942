"""Operators that follow each other, without Spark: results of one driver are rows of the next."""

from collections.abc import Sequence

from support.pipelines.operator_driver import Driver, Rows


def as_input(results: Sequence[dict], shuffled=lambda rows: rows) -> Rows:
    """Results by their partitions, in the order of their offsets; those of the same offset are in
    any order, as behind a shuffle."""
    found: dict[tuple[str, int], list[dict]] = {}
    for row in shuffled(list(results)):
        position = row["_position"]
        partition = position["topic"], position["partition"]
        found.setdefault(partition, []).append({**row, "_position": position["offset"]})
    return {
        partition: sorted(rows, key=lambda row: row["_position"])
        for partition, rows in found.items()
    }


class Chain:
    """One or several first operators, which read the same log, and the one that follows them and
    gets their watermarks. `shuffled` is what is done to the results in between."""

    def __init__(self, firsts: Sequence[Driver], second: Driver, shuffled=lambda rows: rows):
        self._firsts, self.second, self._shuffled = firsts, second, shuffled

    def batch(self, *rows: Rows) -> list[dict]:
        """Of the log; `rows` of both inputs, if a first operator has two."""
        given = [as_input(first.batch(*rows), self._shuffled) for first in self._firsts]
        watermarks = [
            first.output_watermark(f"first-{number}") for number, first in enumerate(self._firsts)
        ]
        if not any(given) and not any(watermarks):
            return []
        return self.second.batch(*given, watermarks=watermarks)
