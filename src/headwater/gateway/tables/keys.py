"""Keys of topics in an address: the key itself, or the values of its columns.

Keys of captures and derived topics are JSON objects, `{"id":17}`: /tables/T/17 is that one, with
one segment for each column. The other keys of the topic show which columns there are.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import orjson

from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.errors import DataLost

_LOOKED_AT: Final = 100  # offsets of a partition, for a key


def of_columns(parts: Sequence[str], other: bytes) -> bytes | None:
    """The key with these values, of the same form as another one; None if that has other columns,
    or is no object.
    """
    form = _parsed(other)
    if not isinstance(form, dict) or len(form) != len(parts):
        return None
    values = (
        part if isinstance(one, str) else _parsed(part.encode())
        for one, part in zip(form.values(), parts, strict=True)
    )
    return orjson.dumps(dict(zip(form, values, strict=True)))


def of_topic(fetcher: Fetcher, topic: str, partitions: int, parts: Sequence[str]) -> bytes | None:
    """The key that is meant; None if the topic has no such keys. Blocks."""
    if len(parts) == 1 and isinstance(_parsed(parts[0].encode()), dict):
        return parts[0].encode()
    places = [(topic, number) for number in range(partitions)]
    starts, ends = fetcher.offsets(places, EARLIEST), fetcher.offsets(places, LATEST)
    for place in places:
        until = min(starts[place] + _LOOKED_AT, ends[place])
        with suppress(DataLost):  # retention was quicker; another partition has keys, too
            for record in fetcher.records(*place, starts[place], until):
                if record.key is not None and (found := of_columns(parts, record.key)) is not None:
                    return found
    return parts[0].encode() if len(parts) == 1 else None


def _parsed(data: bytes) -> Any:
    """None if it is no JSON."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
