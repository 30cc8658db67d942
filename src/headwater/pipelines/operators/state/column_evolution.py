"""Rows in the state, read by an operator whose inputs have other columns now."""

from collections.abc import Collection

import pyarrow as pa

from headwater.errors import StateLost


def with_columns_of(schema: pa.Schema, kept: pa.Table, key: Collection[str]) -> pa.Table:
    """The kept rows in this schema: a column that the input got since is null in older rows, as it
    is in the log; one that is gone is left out; a value of another type is read as far as it fits.

    `key`: columns that tell which bucket a row is in. Of another type, the same key is in another
    bucket. Raises StateLost.
    """
    if kept.schema.names == schema.names and kept.schema.types == schema.types:
        return kept
    columns = []
    for field in schema:
        if field.name not in kept.column_names:
            columns.append(pa.nulls(len(kept), field.type))
            continue
        column = kept[field.name]
        if column.type != field.type and field.name in key:
            raise _lost(field, f"a key: it was {column.type}, and is {field.type}")
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            raise _lost(field, str(error)) from error
    return pa.table(columns, schema=schema)


def _lost(field: pa.Field, why: str) -> StateLost:
    return StateLost(
        f"the column {field.name} has another type since its rows were joined",
        detail=why,
        hint="rebuild the pipeline",
    )
