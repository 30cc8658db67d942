"""The key columns of joins, as users write them in `on`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headwater.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")  # each fits into the next

On = str | Sequence[str | tuple[str, str]]


def pairs_of(kind: str, on: On) -> list[tuple[str, str]]:
    """(the left's column, the right's). `kind` is whose argument it is. Raises PipelineError."""
    pairs = []
    for column in [on] if isinstance(on, str) or not isinstance(on, Sequence) else on:
        match column:
            case str():
                pairs.append((column, column))
            case (str() as one, str() as other):
                pairs.append((one, other))
            case _:
                raise _refused(kind, on)
    if not pairs:
        raise _refused(kind, on)
    return pairs


def with_equal_types(
    kind: str, left: "DataFrame", right: "DataFrame", pairs: Sequence[tuple[str, str]]
) -> tuple["DataFrame", "DataFrame"]:
    """Equal keys must have equal hashes, so integers of different sizes become the larger. Raises
    PipelineError for other types that differ.
    """
    from pyspark.sql import functions as F  # noqa: N812 (as all of PySpark's users write it)

    for one, other in pairs:
        types = type_of(left, one), type_of(right, other)
        if types[0] == types[1]:
            continue
        if not all(kind in INTEGERS for kind in types):
            raise PipelineError(
                f"{kind}: keys of different types are never equal",
                detail=f"{one} is {types[0]}, {other} is {types[1]}",
                hint=f'cast one of them: .withColumn("{other}", F.col("{other}").cast(…))',
            )
        wider = max(types, key=INTEGERS.index)
        left = left.withColumn(one, F.col(one).cast(wider))
        right = right.withColumn(other, F.col(other).cast(wider))
    return left, right


def type_of(frame: "DataFrame", name: str) -> str:
    """As SQL writes it."""
    text: str = frame.schema[name].dataType.simpleString()
    return text


def _refused(kind: str, on: object) -> PipelineError:
    return PipelineError(
        f"{kind}: on={on!r} does not name columns",
        hint='on="id", on=["a", "b"], or pairs of names: on=[("id", "order_id")]',
    )
