"""Parsed schemas of the registry, the last ones used, bounded by the bytes of their texts."""

import threading
from collections import OrderedDict
from typing import Final

from headwater.schemas.schema import Parsed, Resolve, Schema, parse

_MAX_TEXT_BYTES: Final = 8 << 20  # what is parsed takes some ten times as much


class ParsedCache:
    """May be used by several threads."""

    def __init__(self, resolve: Resolve, max_text_bytes: int = _MAX_TEXT_BYTES) -> None:
        self._resolve = resolve
        self._max_text_bytes = max_text_bytes
        self._text_bytes = 0
        self._parsed: OrderedDict[tuple[str, str, object], Parsed] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, schema: Schema) -> Parsed:
        """Raises SchemaRefused."""
        key = (schema.type, schema.text, schema.references)
        with self._lock:
            if key in self._parsed:
                self._parsed.move_to_end(key)
                return self._parsed[key]
        parsed = parse(schema, self._resolve)
        with self._lock:
            if key not in self._parsed:
                self._parsed[key] = parsed
                self._text_bytes += len(schema.text)
                while self._text_bytes > self._max_text_bytes and len(self._parsed) > 1:
                    (_, text, _), _ = self._parsed.popitem(last=False)
                    self._text_bytes -= len(text)
        return parsed

    def clear(self) -> None:
        """References may lead elsewhere now."""
        with self._lock:
            self._parsed.clear()
            self._text_bytes = 0
