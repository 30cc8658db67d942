"""The aggregates of windows as users call them: `hw.agg.count()`, `hw.agg.sum("total")`."""

from collections.abc import Sequence

from headwater.pipelines.operators.aggregates.bloom import Bloom, might_contain
from headwater.pipelines.operators.aggregates.contract import Aggregate, Count
from headwater.pipelines.operators.aggregates.distinct import Distinct
from headwater.pipelines.operators.aggregates.extremes import Extreme
from headwater.pipelines.operators.aggregates.first_last import FirstOrLast
from headwater.pipelines.operators.aggregates.named_aggregates import Previous
from headwater.pipelines.operators.aggregates.percentiles import Percentiles
from headwater.pipelines.operators.aggregates.sums import Average, Rate, Sum
from headwater.pipelines.operators.aggregates.top_values import Top
from headwater.pipelines.operators.time.durations import Duration, microseconds

__all__ = [
    "avg",
    "bloom",
    "count",
    "distinct",
    "first",
    "last",
    "max",
    "might_contain",
    "min",
    "percentile",
    "percentiles",
    "previous",
    "rate",
    "sum",
    "top",
]


def count(column: str | None = None) -> Aggregate:
    """Of rows; with a column, of those where it is not null."""
    return Count(column)


def sum(column: str) -> Aggregate:  # noqa: A001 (a name of SQL's)
    """Of integers a bigint, of decimals a decimal with 10 more digits, else a double."""
    return Sum(column)


def avg(column: str) -> Aggregate:
    """Of decimals a decimal with 4 more digits behind the point, else a double."""
    return Average(column)


def rate(per: Duration) -> Aggregate:
    """Rows for each `per` of the window, as a double: `rate("1 second")`."""
    return Rate(microseconds(per, "per", at_least_us=1))


def min(column: str) -> Aggregate:  # noqa: A001
    return Extreme(column, is_max=False)


def max(column: str) -> Aggregate:  # noqa: A001
    return Extreme(column, is_max=True)


def first(column: str) -> Aggregate:
    """The value, not null, with the earliest event time; of equal times, with the least offset."""
    return FirstOrLast(column, is_last=False)


def last(column: str) -> Aggregate:
    """The value, not null, with the latest event time; of equal times, with the greatest offset."""
    return FirstOrLast(column, is_last=True)


def percentile(column: str, share: float) -> Aggregate:
    """A double, at most 0.8 % off the value of rank ⌈share · n⌉: `percentile("ms", 0.99)`."""
    return Percentiles(column, (share,), is_single=True)


def percentiles(column: str, shares: Sequence[float]) -> Aggregate:
    """Several at the cost of one, as a list of doubles: `percentiles("ms", [0.5, 0.9, 0.99])`."""
    return Percentiles(column, tuple(shares), is_single=False)


def distinct(column: str) -> Aggregate:
    """How many distinct values: exactly up to 511, then with a standard error of 1.6 %."""
    return Distinct(column)


def top(column: str, most: int, *, distinct: int = 100_000) -> Aggregate:
    """The most frequent values with their counts, as a list of structs (value, count); of equal
    counts the least value first. Exact: a window may have so many `distinct` values, and more of
    them are an error.
    """
    return Top(column, most, distinct)


def bloom(column: str, *, expected: int = 10_000, false_positives: float = 0.01) -> Aggregate:
    """A Bloom filter of the values, as bytes for `might_contain`. With up to `expected` distinct
    values at most so large a share of others seems to be in it.
    """
    return Bloom(column, expected, false_positives)


def previous(name: str, ago: Duration | None = None) -> Previous:
    """What the aggregate `name` of the same `.agg(…)` was in the same key's window before (in that
    which began `ago` earlier); null if that had no rows. Of tumbling and hopping windows.
    """
    return Previous(name, ago)
