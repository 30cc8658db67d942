"""Schema evolution of state: stored rows read by an operator whose inputs have other columns."""

from collections.abc import Collection

import pyarrow as pa

from headwater.errors import StateLost


def with_columns_of(schema: pa.Schema, stored: pa.Table, key: Collection[str]) -> pa.Table:
    """The stored rows in this schema. A column that the input got since is null in older rows, as
    it is in the log; a removed column is left out; a value of another type is cast if it fits.

    `key`: columns by which rows are assigned to buckets. With another type, the same key would be
    in another bucket. Raises StateLost.
    """
    if stored.schema.names == schema.names and stored.schema.types == schema.types:
        return stored
    columns = []
    for field in schema:
        if field.name not in stored.column_names:
            columns.append(pa.nulls(len(stored), field.type))
            continue
        column = stored[field.name]
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
