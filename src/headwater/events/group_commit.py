"""Group commit: appends of threads that come at the same time share one transaction.

One thread leads: it appends for all that wait, until its own append is done; then the next one
that waits leads. What comes during a commit is the next group. Memory is that of the waiting
threads' own requests; a group is bounded by number and bytes.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from headwater.events.append_request import AppendRequest
from headwater.events.contract import Appended

_GROUP_APPENDS: Final = 256
_GROUP_BYTES: Final = 16 << 20


class Pending:
    """An append that waits for a transaction."""

    def __init__(self, request: AppendRequest) -> None:
        self.request = request
        self.is_awake = threading.Event()  # it is done, or it has to lead
        self.is_done = False
        self.result: Appended | None = None
        self.error: BaseException | None = None


class GroupCommit:
    """`commit` appends a group in one transaction and sets results and errors of each; what it
    raises is not about one of them (a view raised, the commit failed): each then gets a
    transaction of its own. `writer` is held meanwhile.
    """

    def __init__(self, commit: Callable[[Sequence[Pending]], None], writer: threading.Lock) -> None:
        self._commit = commit
        self._writer = writer
        self._lock = threading.Lock()
        self._pending: list[Pending] = []
        self._is_led = False

    def append(self, request: AppendRequest) -> Appended:
        """Returns when it is committed. Raises what the append has raised."""
        pending = Pending(request)
        with self._lock:
            self._pending.append(pending)
            leads = not self._is_led
            self._is_led = True
        if not leads:
            try:
                pending.is_awake.wait()
            except BaseException:  # Ctrl-C in the main thread
                self._abandon(pending)
                raise
        if not pending.is_done:
            self._lead(pending)
        if pending.error is not None:
            raise pending.error
        assert pending.result is not None
        return pending.result

    def _lead(self, own: Pending) -> None:
        try:
            while not own.is_done:
                with self._writer:
                    self._append_group()
        finally:
            with self._lock:
                self._pass_on()

    def _pass_on(self) -> None:
        self._is_led = bool(self._pending)
        if self._pending:
            self._pending[0].is_awake.set()

    def _abandon(self, pending: Pending) -> None:
        with self._lock:
            if pending in self._pending:
                self._pending.remove(pending)
                if pending.is_awake.is_set():  # it was to lead
                    self._pass_on()

    def _append_group(self) -> None:
        with self._lock:
            group: list[Pending] = []
            size_bytes = 0
            while self._pending and len(group) < _GROUP_APPENDS:
                size_bytes += self._pending[0].request.size_bytes
                if group and size_bytes > _GROUP_BYTES:
                    break
                group.append(self._pending.pop(0))
        try:
            self._commit(group)
        except BaseException as error:
            if len(group) == 1:
                group[0].error = error
            else:
                self._append_singly(group)
        finally:
            for pending in group:
                pending.is_done = True
                pending.is_awake.set()

    def _append_singly(self, group: Sequence[Pending]) -> None:
        for pending in group:
            try:
                self._commit([pending])
            except BaseException as error:
                pending.result, pending.error = None, error
