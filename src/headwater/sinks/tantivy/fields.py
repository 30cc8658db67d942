"""Columns as fields of a tantivy index, rows as its documents.

    text, lists of text   full text, under the column's name; as they are, under NAME.raw (unless
                          a column is called so)
    numbers, decimals     as numbers (decimals rounded: only to be found by)
    bool, date, timestamp the same (times outside of 1677 to 2262 are not found)
    anything else         not searched

The row itself is stored as JSON in ROW; the fields above are only searched.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import tantivy

from headwater.errors import ConfigError
from headwater.sinks.rows import json_text
from headwater.sinks.rows.documents import Documents

ID, ROW, BUCKET, STATE = "_id", "_row", "_bucket", "_state"
BUCKETS: Final = 64  # reads go by them, so that no read holds all rows at once
LONGEST_ID_BYTES: Final = 65_530  # tantivy silently drops longer terms

_FIRST_S, _END_S = -9_223_372_036, 9_223_372_036  # what 64 bits of nanoseconds have room for
_LANGUAGES: Final = (
    "arabic", "danish", "dutch", "english", "finnish", "french", "german", "greek", "hungarian",
    "italian", "norwegian", "portuguese", "romanian", "russian", "spanish", "swedish", "tamil",
    "turkish",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Analysis:
    """How the texts of a `flow.write` are analysed."""

    text: tuple[str, ...] | None  # the columns that are full text; None: every text
    language: str  # of the stemmer; "": no stemming

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> "Analysis":
        language = options.get("language", "").lower()
        if language and language not in _LANGUAGES:
            raise ConfigError(
                f"unknown language {language}", hint=f"known are: {', '.join(_LANGUAGES)}"
            )
        text = options.get("text")
        return cls(
            None
            if text is None
            else tuple(name.strip() for name in text.split(",") if name.strip()),
            language,
        )

    def has_text(self, column: str) -> bool:
        return self.text is None or column in self.text


def schema_of(fields: pa.Schema, analysis: Analysis) -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field(ID, tokenizer_name="raw", index_option="basic")
    builder.add_text_field(STATE, tokenizer_name="raw", index_option="basic")
    builder.add_unsigned_field(BUCKET, indexed=True)
    builder.add_bytes_field(ROW, stored=True)
    for field in fields:
        kind = _kind(field)
        if kind == "text" and analysis.has_text(field.name):
            builder.add_text_field(field.name, tokenizer_name=_tokenizer(analysis))
            if (raw := f"{field.name}.raw") not in fields.names:
                builder.add_text_field(raw, tokenizer_name="raw", fast=True)
        elif kind == "text":
            builder.add_text_field(field.name, tokenizer_name="raw", fast=True)
        elif kind is not None:
            add = getattr(builder, f"add_{kind}_field")
            add(field.name, indexed=True, fast=True)
    return builder.build()


def text_fields(fields: pa.Schema, analysis: Analysis) -> list[str]:
    return [
        field.name for field in fields if _kind(field) == "text" and analysis.has_text(field.name)
    ]


def register(index: tantivy.Index, analysis: Analysis) -> None:
    """An index stores only the names of its tokenizers; they are registered each time."""
    if analysis.language:
        words = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
        words = words.filter(tantivy.Filter.remove_long(40)).filter(tantivy.Filter.lowercase())
        stems = words.filter(tantivy.Filter.stemmer(analysis.language)).build()
        index.register_tokenizer(_tokenizer(analysis), stems)


def index_documents(documents: Documents, analysis: Analysis) -> Iterator[str]:
    """In tantivy's JSON, in the order of the rows."""
    count = len(documents.rows)
    columns: dict[str, pa.Array] = {
        ROW: documents.documents,
        BUCKET: pa.array(np.arange(count) % BUCKETS),
    }
    if len(documents.ids):
        columns[ID] = documents.ids
    names = documents.rows.column_names
    for field, column in zip(documents.rows.schema, documents.rows.columns, strict=True):
        if (kind := _kind(field)) is None:
            continue
        values = _searched(pa.concat_arrays([*column.chunks, pa.array([], field.type)]), kind)
        columns[field.name] = values
        raw = f"{field.name}.raw"
        if kind == "text" and analysis.has_text(field.name) and raw not in names:
            columns[raw] = values
    texts = json_text.objects(list(columns.values()), list(columns))
    for document in texts.to_pylist():
        yield document.decode()


def state_document(state: Mapping[str, Any]) -> str:
    row = pa.array([orjson.dumps(state)], pa.binary())
    name = pa.array(["position"])
    return str(json_text.objects([name, row], [STATE, ROW])[0].as_py().decode())


def _tokenizer(analysis: Analysis) -> str:
    return f"words_{analysis.language}" if analysis.language else "default"


def _kind(field: pa.Field) -> str | None:
    """Of tantivy's field; None if it is not searched."""
    is_ = pa.types
    if field.name in (ID, ROW, BUCKET, STATE):
        return None
    if not tantivy.SchemaBuilder.is_valid_field_name(field.name):
        return None
    kind = field.type.value_type if is_.is_list(field.type) else field.type
    if is_.is_string(kind):
        return "text"
    if is_.is_list(field.type):
        return None
    if is_.is_boolean(kind):
        return "boolean"
    if kind == pa.uint64():
        return "unsigned"
    if is_.is_integer(kind):
        return "integer"
    if is_.is_floating(kind) or is_.is_decimal(kind):
        return "float"
    if is_.is_date(kind) or is_.is_timestamp(kind):
        return "date"
    return None


def _searched(column: pa.Array, kind: str) -> pa.Array:
    """Each value as a list, as documents have no nulls: a null is an empty list."""
    if pa.types.is_list(column.type):
        lengths = pc.fill_null(pc.list_value_length(column), 0)
        values = column.flatten()
        if values.null_count:
            values = pc.fill_null(values, "")
        return pa.ListArray.from_arrays(_bounds(lengths), values)
    if kind == "float":
        column = column.cast(pa.float64())
        column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, pa.float64()))
    elif kind == "date":
        # In UTC, with the Z that tantivy wants.
        column = column.cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
        seconds = pc.divide(column.cast(pa.int64()), 1_000_000)
        is_inside = pc.and_(pc.greater(seconds, _FIRST_S), pc.less(seconds, _END_S))
        column = pc.if_else(is_inside, column, pa.scalar(None, column.type))
    return pa.ListArray.from_arrays(_bounds(column.is_valid().cast(pa.int32())), column.drop_null())


def _bounds(lengths: pa.Array) -> pa.Array:
    ends = np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int32)
    return pa.array(np.concatenate((np.zeros(1, np.int32), ends)))
