"""Columns from Python values, for formats whose readers give them record by record."""

import json
from collections.abc import Callable, Sequence
from datetime import time
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from headwater.pipelines.decoding.contract import Rows

_UNFIT: Final = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError)


class PythonRows:
    """Builds the columns of a schema."""

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._fields = fields
        self._plain = [_plain(field.type) for field in fields]

    def __reduce__(self) -> Any:
        return PythonRows, (self._fields,)  # functions made here cannot be pickled

    def build(
        self, columns: list[list[Any]], rows: Rows
    ) -> tuple[list[pa.Array], Rows, list[tuple[int, str]]]:
        """The columns, from which record each row is (`rows` without those that do not fit), and
        what is wrong with the others. A text, a number … that does not fit its column rejects its
        record only.
        """
        causes: dict[int, str] = {}
        arrays = []
        for field, plain, values in zip(self._fields, self._plain, columns, strict=True):
            try:
                array = pa.array(map(plain, values), field.type)
                is_fit = not array.null_count or field.nullable
            except _UNFIT:
                is_fit = False
            if not is_fit:
                array = pa.nulls(len(values), field.type)
                _find_unfit(field, plain, values, causes)
            arrays.append(array)
        if not causes:
            return arrays, rows, []
        fit = np.setdiff1d(np.arange(len(rows)), np.array(sorted(causes), np.int64))
        fitting = [[values[row] for row in fit.tolist()] for values in columns]
        arrays, fit_rows, _ = self.build(fitting, rows[fit])
        return arrays, fit_rows, [(int(rows[row]), cause) for row, cause in causes.items()]


def _find_unfit(
    field: pa.Field, plain: Callable[[Any], Any], values: list[Any], causes: dict[int, str]
) -> None:
    for row, value in enumerate(values):
        try:
            array = pa.array([plain(value)], field.type)
        except _UNFIT as error:
            causes.setdefault(row, f"field {field.name}: {error}")
        else:
            if array.null_count and not field.nullable:
                causes.setdefault(
                    row, f"field {field.name}: it is null or missing, and must not be"
                )


def _plain(type_: pa.DataType) -> Callable[[Any], Any]:
    """Converts a reader's value into one that pa.array accepts."""
    is_ = pa.types
    if is_.is_string(type_) or is_.is_large_string(type_):
        return _text
    if is_.is_list(type_) or is_.is_large_list(type_):
        item = _plain(type_.value_type)
        return lambda value: None if value is None else [item(element) for element in value]
    if is_.is_map(type_):
        inner = _plain(type_.item_type)
        return lambda value: (
            None if value is None else [(name, inner(entry)) for name, entry in value.items()]
        )
    if is_.is_struct(type_):
        members = [(field.name, _plain(field.type)) for field in type_]
        return lambda value: (
            None if value is None else {name: plain(value.get(name)) for name, plain in members}
        )
    if is_.is_integer(type_) or is_.is_floating(type_):
        return _number
    return _same


def _same(value: Any) -> Any:
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise TypeError("expected a number, got a boolean")
    return value


def _text(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, time):
        return value.isoformat("microseconds")
    if isinstance(value, dict | list):
        return json.dumps(value, default=str, ensure_ascii=False)
    return value
