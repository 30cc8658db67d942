"""Records as people want to read them: values by schemas as JSON, personal fields decrypted."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from headwater.errors import HeadwaterError
from headwater.schema_lookup.lookup import SchemaLookup, looks_framed
from headwater.subjects.keyring import Keyring
from headwater.subjects.personal import MARK, Marked, decrypted
from headwater.subjects.sealing import Tampered

_ERASED: Final = b'"(erased)"'


class _DecodedMessage:
    """A message of librdkafka with another key and value."""

    def __init__(self, message: Any, key: bytes | None, value: bytes | None) -> None:
        self._message = message
        self._key = key
        self._value = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value


class RecordDecryptor:
    """Decrypts personal fields. What was erased is a marked blank; what was changed stays as it is,
    and `warn` says so once.
    """

    def __init__(
        self,
        keyring: Keyring,
        marked: Mapping[str, Sequence[Marked]],
        warn: Callable[[str], None],
    ) -> None:
        """`marked`: the personal fields by topic."""
        self._keyring = keyring
        self._marked = marked
        self._warn = warn
        self._has_warned = False

    def __call__(self, message: Any) -> Any:
        value = message.value()
        if value is None or MARK not in value:
            return message
        self._keyring.refresh()
        marks = self._marked.get(message.topic(), ())
        try:
            plain = decrypted(value, self._keyring, None, lambda _: _ERASED, marks)
        except Tampered as error:
            if not self._has_warned:
                self._has_warned = True
                self._warn(f"not decrypted: {error}")
            return message
        return _DecodedMessage(message, message.key(), plain)


class RecordDecoder:
    """Decodes what it can. The registry is asked for when the first such record comes; what cannot
    be decoded stays as it is, and `warn` says once why.
    """

    def __init__(self, make: Callable[[], SchemaLookup], warn: Callable[[str], None]) -> None:
        self._make = make
        self._warn = warn
        self._lookup: SchemaLookup | None = None
        self._said: set[str] = set()

    def __call__(self, message: Any) -> Any:
        key, value = message.key(), message.value()
        if not looks_framed(key) and not looks_framed(value):
            return message
        return _DecodedMessage(message, self._decoded(key), self._decoded(value))

    def _decoded(self, data: bytes | None) -> bytes | None:
        if data is None or not looks_framed(data):
            return data
        try:
            if self._lookup is None:
                self._lookup = self._make()
            return self._lookup.decode(data).json()
        except (ValueError, HeadwaterError) as error:
            if str(error) not in self._said and len(self._said) < 10:
                self._said.add(str(error))
                self._warn(f"not decoded: {error}")
            return data

    def close(self) -> None:
        if self._lookup is not None:
            self._lookup.close()
