"""Schema evolution of a target: added columns, widened types, and incompatible changes.

A version's fields only ever grow. A column that a pipeline no longer has stays, and is null in rows
written since, so that a store has the same contents however the log is cut into batches.
"""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from headwater.errors import StoreRefused

# All values of a type are values of the following types, unchanged.
_INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED: Final = {
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(),
}  # fmt: skip
_SAME: Final = {
    pa.large_string(): pa.string(), pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary(),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class EvolvedSchema:
    fields: pa.Schema  # all columns: the stored ones in their order, then the new ones
    added: tuple[pa.Field, ...]
    widened: tuple[pa.Field, ...]  # with their new types


def evolved(stored: pa.Schema, given: pa.Schema, *, can_widen: bool = True) -> EvolvedSchema:
    """The columns that a store with `stored` needs for rows of `given`. Nullability is ignored.
    Raises StoreRefused for a column whose type changed to one that does not hold the stored values,
    or (`can_widen` is False) to any wider one.
    """
    fields = {field.name: field for field in plain(stored)}
    added, widened = [], []
    for field in plain(given):
        if field.name not in fields:
            fields[field.name] = field
            added.append(field)
            continue
        before = fields[field.name].type
        wider = _wider(before, field.type)
        if wider is None or (wider != before and not can_widen):
            raise StoreRefused(
                f"column {field.name} was {before} and is {field.type} now",
                detail="the store cannot change it to that",
                hint="cast it to what it was, give it another name, or rebuild into a new version",
            )
        if wider != before:
            fields[field.name] = pa.field(field.name, wider)
            widened.append(fields[field.name])
    return EvolvedSchema(pa.schema(list(fields.values())), tuple(added), tuple(widened))


def plain(fields: pa.Schema) -> pa.Schema:
    """The types that stores support: one Arrow type for each logical type, zones as UTC."""
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in fields])


def fitted(rows: pa.Table, fields: pa.Schema) -> pa.Table:
    """The rows with the columns of `fields`, in their order and types; missing ones are null."""
    columns = [_fitted(rows, field) for field in fields]
    return pa.Table.from_arrays(columns, schema=fields)


def _fitted(rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    if field.name not in rows.column_names:
        return pa.chunked_array([pa.nulls(len(rows), field.type)])
    try:
        return rows[field.name].cast(field.type)
    except pa.ArrowInvalid as error:
        raise StoreRefused(
            f"column {field.name} has values that are no {field.type}",
            detail=str(error),
            hint="cast it in the pipeline",
        ) from error


def _plain(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(type_):
        return _plain(type_.value_type)
    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", "UTC" if type_.tz else None)
    if pa.types.is_decimal(type_) and type_.precision <= 38:
        return pa.decimal128(type_.precision, type_.scale)
    if pa.types.is_map(type_):
        return pa.map_(_plain(type_.key_type), _plain(type_.item_type))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(_plain(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in type_])
    return _SAME.get(type_) or _UNSIGNED.get(type_) or type_


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The narrowest type for values of both; None if there is none."""
    if one == other:
        return one
    if one in _INTEGERS and other in _INTEGERS:
        return _INTEGERS[max(_INTEGERS.index(one), _INTEGERS.index(other))]
    if {one, other} == {pa.float32(), pa.float64()}:
        return pa.float64()
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        scale = max(one.scale, other.scale)
        precision = max(one.precision - one.scale, other.precision - other.scale) + scale
        return pa.decimal128(precision, scale) if precision <= 38 else None
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _wider_struct(one, other)
    if pa.types.is_list(one) and pa.types.is_list(other):
        value = _wider(one.value_type, other.value_type)
        return value and pa.list_(value)
    if pa.types.is_null(one) or pa.types.is_null(other):
        return other if pa.types.is_null(one) else one
    return None


def _wider_struct(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    types = {field.name: field.type for field in one}
    for field in other:
        wider = _wider(types[field.name], field.type) if field.name in types else field.type
        if wider is None:
            return None
        types[field.name] = wider
    return pa.struct([pa.field(name, type_) for name, type_ in types.items()])
