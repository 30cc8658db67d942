"""Rows as a store's columns have them; those that have no key are refused."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import RowRefused
from headwater.sinks.contract import OP, TRUNCATE, Refuse
from headwater.sinks.evolving import fitted


def fit(rows: pa.Table, fields: pa.Schema, key: Sequence[str], refuse: Refuse | None) -> pa.Table:
    """The rows as `fields` has them (a column that they lack is null), and OP if they have it.

    A row with a null in its key raises RowRefused; with `refuse` all of them are told and left out.
    """
    bad: dict[int, RowRefused] = {}
    for name in key:
        for at in np.flatnonzero(_has_no_key(rows, name)).tolist():
            bad.setdefault(
                at,
                RowRefused(
                    f"a row has no {name}, which is part of the key",
                    row=rows.slice(at, 1).to_pylist()[0],
                    column=name,
                    hint="filter such rows out, or choose another key",
                ),
            )
    if bad:
        refused = [bad[at] for at in sorted(bad)]
        if refuse is None:
            raise refused[0]
        refuse(refused)
        is_good = np.ones(len(rows), dtype=bool)
        is_good[list(bad)] = False
        rows = rows.filter(pa.array(is_good))
    fitting = fitted(rows, fields)
    if OP in rows.column_names and OP not in fields.names:
        fitting = fitting.append_column(OP, rows[OP])
    return fitting


def _has_no_key(rows: pa.Table, name: str) -> np.ndarray:
    missing = pc.is_null(rows[name])
    if OP in rows.column_names:  # a truncate has no columns
        is_row = pc.fill_null(pc.not_equal(rows[OP], TRUNCATE), fill_value=True)
        missing = pc.and_(missing, is_row)
    return missing.to_numpy()  # type: ignore[no-any-return]
