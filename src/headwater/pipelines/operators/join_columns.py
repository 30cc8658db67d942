"""The columns that joins go by, as users write them."""

from collections.abc import Sequence

from headwater.errors import PipelineError

On = str | Sequence[str | tuple[str, str]]


def pairs_of(kind: str, on: On) -> list[tuple[str, str]]:
    """(the left's column, the right's). `kind` is whose argument it is. Raises PipelineError."""
    pairs = []
    for each in [on] if isinstance(on, str) or not isinstance(on, Sequence) else on:
        match each:
            case str():
                pairs.append((each, each))
            case (str() as one, str() as other):
                pairs.append((one, other))
            case _:
                raise _refused(kind, on)
    if not pairs:
        raise _refused(kind, on)
    return pairs


def _refused(kind: str, on: object) -> PipelineError:
    return PipelineError(
        f"{kind}: on={on!r} does not name columns",
        hint='on="id", on=["a", "b"], or pairs of names: on=[("id", "order_id")]',
    )
