"""Columns as an OpenSearch mapping, which only decides how they are searched.

The row itself is `_source`, which OpenSearch returns byte by byte; a value that it cannot index
(NaN) is in there all the same.
"""

from typing import Any, Final

import pyarrow as pa

from headwater.errors import StoreRefused

# Names of OpenSearch's own metadata fields, which documents may not have.
_RESERVED: Final = frozenset(
    ("_id", "_index", "_source", "_size", "_field_names", "_ignored", "_routing", "_type",
     "_version", "_seq_no", "_primary_term", "_doc_count", "_nested_path", "_data_stream_timestamp")
)  # fmt: skip
_EXACT_CHARACTERS: Final = 8191  # 32 KiB is the longest term, of characters that may take 4 bytes


def mapping_of(fields: pa.Schema, analyzer: str) -> dict[str, Any]:
    """Raises StoreRefused for a column with a reserved name."""
    for field in fields:
        if field.name in _RESERVED or not all(field.name.split(".")) or not field.name.strip():
            raise StoreRefused(
                f"a column cannot be called {field.name} in OpenSearch", hint="give it another name"
            )
    return {field.name: _property(field.type, analyzer) for field in fields}


def _property(kind: pa.DataType, analyzer: str) -> dict[str, Any]:
    is_ = pa.types
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return _property(kind.value_type, analyzer)
    if is_.is_struct(kind):
        inside = {field.name: _property(field.type, analyzer) for field in kind}
        return {"type": "object", "dynamic": False, "properties": inside}
    if is_.is_map(kind):  # any names
        return {"type": "object", "enabled": False}
    if is_.is_boolean(kind):
        return {"type": "boolean"}
    if kind == pa.uint64():
        return {"type": "unsigned_long", "ignore_malformed": True}
    if is_.is_integer(kind) or is_.is_duration(kind):
        return {"type": "long", "ignore_malformed": True}
    if is_.is_floating(kind) or is_.is_decimal(kind):
        return {"type": "double", "ignore_malformed": True}
    if is_.is_date(kind) or is_.is_timestamp(kind):
        return {"type": "date", "format": "strict_date_optional_time", "ignore_malformed": True}
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind):
        return {"type": "binary"}
    exact = {"type": "keyword", "ignore_above": _EXACT_CHARACTERS}
    if is_.is_string(kind) or is_.is_large_string(kind):
        return {"type": "text", "analyzer": analyzer, "fields": {"keyword": exact}}
    return exact  # times of day
