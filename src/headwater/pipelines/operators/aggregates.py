"""The aggregates of windows, as users name them: `hw.agg.count()`, `hw.agg.sum("total")`."""

from headwater.pipelines.operators.aggregate import Aggregate, Count
from headwater.pipelines.operators.durations import Duration, microseconds
from headwater.pipelines.operators.extremes import Extreme
from headwater.pipelines.operators.sums import Average, Rate, Sum

__all__ = ["avg", "count", "max", "min", "rate", "sum"]


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
