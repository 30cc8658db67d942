"""Parquet files of batches: partitions, names, and reading them at a position."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.errors import StoreRefused
from headwater.sinks.version_directories import sync_directory

_MAX_PARTITIONS: Final = 1000  # of one batch
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ROWS_READ: Final = 65_536


def check_types(fields: pa.Schema) -> None:
    for field in fields:
        try:
            pq.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())
        except pa.ArrowNotImplementedError as error:
            raise StoreRefused(
                f"Parquet has no type for column {field.name}, which is {field.type}",
                detail=str(error),
                hint="cast it in the pipeline, for example to a text",
            ) from error


def show(root: str, files: dict[str, str]) -> None:
    """Renames the files of a commit to their final names, where that is not done yet."""
    for temporary, name in files.items():
        with contextlib.suppress(FileNotFoundError):
            os.rename(os.path.join(root, temporary), os.path.join(root, name))
    for directory in {os.path.dirname(name) for name in files.values()}:
        sync_directory(os.path.join(root, directory))


def sweep(root: str, epoch: int) -> None:
    """Removes files that earlier writers did not commit."""
    for directory, _, names in os.walk(root):
        for name in names:
            match = re.fullmatch(r"\.(\d+)-\d+-\d+\.tmp", name)
            if match and int(match[1]) < epoch:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, name))


def partitioned(rows: pa.Table, by: tuple[str, ...]) -> Iterator[tuple[str, pa.Table]]:
    """For each partition its directory and its rows, in their order, without its columns."""
    if not len(rows):
        return
    if not by:
        yield "", rows
        return
    group = np.zeros(len(rows), dtype=np.int64)
    for name in by:
        encoded = rows[name].combine_chunks().dictionary_encode()
        group = group * (len(encoded.dictionary) + 1)
        group += pc.fill_null(encoded.indices, len(encoded.dictionary)).to_numpy()
        _, group = np.unique(group, return_inverse=True)
    order = np.argsort(group, kind="stable")
    ends = np.flatnonzero(np.diff(group[order])) + 1
    if len(ends) >= _MAX_PARTITIONS:
        raise StoreRefused(
            f"a batch has rows for {len(ends) + 1} partitions",
            detail=f"at most {_MAX_PARTITIONS} files are written for one batch",
            hint=f"choose something coarser than {', '.join(by)}",
        )
    for chosen in np.split(order, ends):
        of_it = rows.take(pa.array(chosen))
        parts = [f"{quote(name, safe='')}={_text(of_it[name][0])}" for name in by]
        yield os.path.join(*parts), of_it.drop_columns(list(by))


def _text(value: pa.Scalar) -> str:
    plain = value.as_py()
    return _NULL if plain is None else quote(str(plain), safe=" -_:") or _NULL


def opened(root: str, last_batch: int, latest: Mapping[str, str]) -> dict[str, Any]:
    """The files of all batches up to the last: `latest`, those of the last, opened (they may be
    renamed meanwhile), the others by name.
    """
    files: dict[str, Any] = {}
    for directory, _, names in os.walk(root):
        for name in sorted(names):
            match = re.fullmatch(r"part-(\d+)-\d+\.parquet", name)
            if match and int(match[1]) <= last_batch:
                path = os.path.join(directory, name)
                files[os.path.relpath(path, root)] = path
    for temporary, name in latest.items():
        for path in (name, temporary, name):
            with contextlib.suppress(FileNotFoundError):
                files[name] = open(os.path.join(root, path), "rb")  # noqa: SIM115
                break
    return files


def rows_of(files: dict[str, Any], fields: pa.Schema) -> Iterator[pa.RecordBatch]:
    for name, source in files.items():
        partition = dict(part.split("=", 1) for part in name.split("/")[:-1])
        values = {unquote(column): unquote(value) for column, value in partition.items()}
        with pq.ParquetFile(source) as file:
            for batch in file.iter_batches(_ROWS_READ):
                columns = [_column(batch, field, values) for field in fields]
                yield pa.RecordBatch.from_arrays(columns, schema=fields)


def _column(batch: pa.RecordBatch, field: pa.Field, partition: dict[str, str]) -> pa.Array:
    if field.name in partition:
        text = partition[field.name]
        value = pa.scalar(None if text == _NULL else text, pa.string()).cast(field.type)
        return pa.repeat(value, len(batch))
    if field.name not in batch.schema.names:
        return pa.nulls(len(batch), field.type)
    return batch.column(field.name).cast(field.type)
