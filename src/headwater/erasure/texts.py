"""Search for texts of a person in everything that is stored: files byte by byte, and the rows of
derived stores.

Without the keys nobody knows what the values were, so the caller says what to look for.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headwater import config, extras
from headwater.errors import HeadwaterError
from headwater.events.databases.sqlite import SCHEME, path_of
from headwater.inspect.pipelines import reported_writes
from headwater.inspect.store_lookup import store_of_write
from headwater.pipelines.running import status

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK_BYTES: Final = 1 << 24
_DIRECTORIES: Final = ("delta", "parquet")  # kinds of sinks


@dataclass(slots=True)
class TextSearch:
    """What was found where."""

    left: list[str] = field(default_factory=list)  # what has one of the texts, or cannot be read
    files: int = 0
    stores: list[str] = field(default_factory=list)


def search_texts(loaded: config.Config, texts: Sequence[str]) -> TextSearch:
    """In the data directory, an archive in a directory, the state of pipelines, the files of SQLite
    and of Delta and Parquet tables (also those that no version has any more), and in the rows of
    every version of every derived store.
    """
    found = TextSearch()
    for file in _files(loaded):
        found.files += 1
        if any(_contains(file, text) for text in texts):
            found.left.append(f"{file} contains one of the texts")
    for name in loaded.pipelines:
        for write, about in reported_writes(status.read(loaded.state_dir(), name)).items():
            found.stores.append(f"{name}/{write}")
            found.left += _rows_with(loaded, name, write, about, texts)
    return found


def _rows_with(
    loaded: config.Config, pipeline: str, write: str, about: dict[str, Any], texts: Sequence[str]
) -> list[str]:
    found = []
    try:
        store = store_of_write(loaded, pipeline, about)
        try:
            for version in store.versions():
                with store.read(version.number) as contents:
                    if any(_has_text(batch, texts) for batch in contents.rows):
                        found.append(
                            f"{pipeline}/{write}, version {version.number}: a row has one of the"
                            " texts"
                        )
        finally:
            store.close()
    except HeadwaterError as error:
        found.append(f"{pipeline}/{write} cannot be searched: {error}")
    return found


def _has_text(batch: "pa.RecordBatch", texts: Sequence[str]) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    for column in batch.columns:
        kind = column.type
        if pa.types.is_nested(kind):
            values = map(str, column.to_pylist())
            if any(text in value for value in values for text in texts):
                return True
        elif any(
            test(kind)
            for test in (
                pa.types.is_string, pa.types.is_large_string, pa.types.is_binary,
                pa.types.is_large_binary,
            )
        ):  # fmt: skip
            for text in texts:
                if pc.any(pc.match_substring(column, text)).as_py():
                    return True
    return False


def _files(loaded: config.Config) -> Iterator[Path]:
    roots = {(loaded.base / loaded.broker.data_dir).resolve(), loaded.state_dir()}
    archive = loaded.broker.archive or ""
    if archive.startswith("file://"):
        roots.add(Path(archive.removeprefix("file://")).resolve())
    databases: list[str] = []
    if loaded.events.store is not None:
        databases.append(loaded.events.store.reveal())
    for sink in loaded.sinks.values():
        url = sink.url.reveal() if sink.url is not None else ""
        if sink.kind in _DIRECTORIES and url and ("://" not in url or url.startswith("file://")):
            roots.add(Path(url.removeprefix("file://")).resolve())
        elif sink.kind == "sqlite":
            databases.append(url)
    inner = {root for root in roots if any(root != one and one in root.parents for one in roots)}
    for root in sorted(roots - inner):
        for directory, _, names in os.walk(root):
            for name in names:
                file = Path(directory, name)
                if file.is_file() and not file.is_symlink():
                    yield file
    for url in databases:
        if url.startswith(SCHEME):
            for end in ("", "-wal"):
                file = Path(path_of(url) + end).resolve()
                if file.is_file():
                    yield file


def _contains(file: Path, text: str) -> bool:
    """Whether the file has the bytes, as UTF-8; or of Parquet, whether a row has the text.
    Otherwise compressed data are not looked into.
    """
    try:
        if file.suffix == ".parquet" and not extras.missing_of("fast"):
            return _parquet_contains(file, text)
        return _bytes_contain(file, text)
    except OSError:
        return False  # it was removed meanwhile


def _parquet_contains(file: Path, text: str) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as opened:
            return any(_has_text(batch, [text]) for batch in opened.iter_batches())
    except pa.ArrowInvalid:  # damaged, or still being written
        return _bytes_contain(file, text)


def _bytes_contain(file: Path, text: str) -> bool:
    wanted = text.encode()
    before = b""
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            if wanted in before + chunk:
                return True
            before = chunk[-len(wanted) :]
    return False
