"""Records of the schema topic, in the form of Debezium's schema change topic.

They have what a source reports: columns with their names, types and whether they may be null.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from headwater.capture.contract import SchemaChange, Table


def record(
    change: SchemaChange,
    shown: Table | None,
    table: Table,
    source: Mapping[str, Any],
    now_ms: int,
    *,
    is_new: bool,
) -> tuple[bytes, bytes]:
    """Key and value. `shown` is the table as consumers see it now, None if it was dropped."""
    value = {
        "source": source,
        "ts_ms": now_ms,
        "databaseName": source["db"],
        "schemaName": source.get("schema"),
        "ddl": change.ddl,
        "tableChanges": [
            {
                "type": "DROP" if shown is None else "CREATE" if is_new else "ALTER",
                "id": f'"{table.schema}"."{table.name}"',
                "table": None if shown is None else _described(shown),
            }
        ],
    }
    return orjson.dumps({"databaseName": source["db"]}), orjson.dumps(value)


def _described(table: Table) -> dict[str, Any]:
    return {
        "defaultCharsetName": None,
        "primaryKeyColumnNames": table.key,
        "columns": [
            {
                "name": column.name,
                "typeName": column.type,
                "typeExpression": column.type,
                "position": position,
                "optional": column.optional,
            }
            for position, column in enumerate(table.columns, 1)
        ],
        "comment": None,
    }
