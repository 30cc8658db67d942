"""A copy of the registry's state in memory, which follows the topic and changes it."""

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from headwater.errors import BrokerUnreachable, HeadwaterError, SchemaRefused
from headwater.schemas import codes
from headwater.schemas.registry.records import Written
from headwater.schemas.registry.tables import Tables
from headwater.schemas.registry.topic import SchemasTopic
from headwater.settings import ClientSettings

_FOLLOW_S: Final = 0.25

_T = TypeVar("_T")


class Replica:
    """May be used by several threads; who reads `tables` holds `lock`. `on_removed` is called when
    a record was removed: what was derived from it may be wrong then.
    """

    def __init__(
        self,
        bootstrap: str,
        login: ClientSettings,
        on_removed: Callable[[], None],
        *,
        topic: str,
        patience_s: float,
    ) -> None:
        self.tables = Tables()
        self.lock = threading.RLock()
        self._on_removed = on_removed
        self._topic = SchemasTopic(
            bootstrap, login, self._apply, self._clear, topic=topic, patience_s=patience_s
        )
        self._closing = threading.Event()
        self._follower = threading.Thread(target=self._follow, name="schemas", daemon=True)

    def open(self) -> None:
        """Creates the topic if there is none, and reads it. Raises BrokerUnreachable."""
        self._topic.create()
        self._topic.read()
        self._follower.start()

    def close(self) -> None:
        self._closing.set()
        self._topic.close()
        if self._follower.is_alive():
            self._follower.join(5)

    def _follow(self) -> None:
        while not self._closing.wait(_FOLLOW_S):
            try:
                self._topic.read()
            except HeadwaterError:
                continue  # what is in memory stays true; the next one may get through

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        with self.lock:
            self.tables.apply(key, value)
            if value is None:
                self._on_removed()

    def _clear(self) -> None:
        with self.lock:
            self.tables = Tables()
            self._on_removed()

    def found(self, look: Callable[[Tables], _T | None]) -> _T | None:
        """What `look` finds, now or after the rest of the topic was read."""
        with self.lock:
            found = look(self.tables)
        if found is None:
            try:
                self._topic.read()
            except HeadwaterError as error:
                raise _unavailable(error) from error
            with self.lock:
                found = look(self.tables)
        return found

    def change(self, decide: Callable[[Tables], tuple[_T, Sequence[Written]]]) -> _T:
        """The result of `decide`, after its records are stored. Raises SchemaRefused."""
        result: list[_T] = []

        def decided() -> Sequence[Written]:
            with self.lock:
                made, written = decide(self.tables)
            result[:] = [made]
            return written

        try:
            self._topic.change(decided)
        except SchemaRefused:
            raise
        except HeadwaterError as error:
            raise _unavailable(error) from error
        return result[0]


def _unavailable(error: HeadwaterError) -> SchemaRefused:
    code = codes.TIMED_OUT if isinstance(error, BrokerUnreachable) else codes.STORE_FAILED
    return SchemaRefused(code, error.what, detail=error.detail, hint=error.hint)
