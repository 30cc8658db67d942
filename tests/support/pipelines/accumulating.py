"""An aggregate over rows at once, or over parts of them that are merged in any order."""

import numpy as np
import pyarrow as pa

START_US, END_US = 0, 60_000_000


def at_once(aggregate, rows: pa.Table, group, groups: int) -> list[pa.Array]:
    bound = aggregate.bound(rows.schema)
    accumulators = bound.accumulate(rows, np.asarray(group, np.intp), groups)
    assert [column.type for column in accumulators] == list(bound.accumulators)
    assert all(len(column) == groups for column in accumulators)
    return accumulators


def in_parts(aggregate, rows: pa.Table, group, groups: int, random) -> list[pa.Array]:
    """Rows in any order and any cut, accumulators merged two or more at a time in any order, as
    batches, partitions and sessions that grow together would have it."""
    bound = aggregate.bound(rows.schema)
    group = np.asarray(group, np.intp)
    order = list(range(len(rows)))
    random.shuffle(order)
    cuts = sorted(random.randint(0, len(rows)) for _ in range(random.randint(0, 5)))
    parts = []
    for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        taken = np.asarray(order[start:end], np.intp)
        met, local = np.unique(group[taken], return_inverse=True)
        part = rows.take(pa.array(taken, pa.int64()))
        parts.append((met, bound.accumulate(part, local.astype(np.intp), len(met))))
    while len(parts) > 1:
        random.shuffle(parts)
        few = random.randint(2, len(parts))
        parts = [_merged(bound, parts[:few]), *parts[few:]]
    # Groups that no row was in are there too when rows come at once.
    parts.append(
        (np.arange(groups), bound.accumulate(rows.slice(0, 0), np.empty(0, np.intp), groups))
    )
    return _merged(bound, parts)[1]


def result(aggregate, rows: pa.Table, accumulators: list[pa.Array]) -> list:
    bound = aggregate.bound(rows.schema)
    groups = len(accumulators[0])
    found = bound.result(accumulators, np.full(groups, START_US), np.full(groups, END_US))
    assert found.type == bound.result_type
    return found.to_pylist()


def bits(accumulators: list[pa.Array]) -> list[list]:
    """What is compared: NaNs are not equal, and 0.0 is equal to -0.0, but their bits differ."""
    widths = {32: pa.int32(), 64: pa.int64()}
    return [
        (
            column.view(widths[column.type.bit_width])
            if pa.types.is_floating(column.type)
            else column
        ).to_pylist()
        for column in accumulators
    ]


def _merged(bound, parts):
    groups = np.concatenate([met for met, _ in parts])
    met, local = np.unique(groups, return_inverse=True)
    columns = zip(*(accumulators for _, accumulators in parts), strict=True)
    accumulators = [pa.concat_arrays(list(column)) for column in columns]
    return met, bound.merge(accumulators, local.astype(np.intp), len(met))
