"""What a client asks for: `where` and `columns`, as tables have them."""

from dataclasses import dataclass
from typing import Any, Final

import orjson
from starlette.datastructures import QueryParams

from headwater.gateway.reading.filters import Where
from headwater.gateway.tables import queries
from headwater.gateway.tables.latest import where_of
from headwater.inspect.table_rows import Row

PARAMETERS: Final = ("where", "columns")


@dataclass(frozen=True, slots=True)
class LiveQuery:
    """Clients with equal ones share what is made for them."""

    wheres: tuple[Where, ...] = ()
    columns: tuple[str, ...] = ()  # none: all

    def passes(self, row: Row) -> bool:
        if not self.wheres:
            return True
        document = row.document()
        return all(where.passes(document) for where in self.wheres)

    def shaped(self, row: Row) -> bytes:
        """The row as JSON, with the columns that are asked for; one that it has not is null."""
        if not self.columns:
            return row.json
        document: Any = row.document()
        fields = document if isinstance(document, dict) else {}
        return orjson.dumps({name: fields.get(name) for name in self.columns})


def parse(query: QueryParams) -> LiveQuery:
    """Raises Refusal."""
    parsed = queries.parse(query)
    return LiveQuery(tuple(map(where_of, parsed.conditions)), parsed.columns)
