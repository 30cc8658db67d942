"""The stream's position in the binlog: the point behind the last transaction."""

import time
from typing import Any, Final

from headwater.capture.contract import PositionAdvanced, SourcePosition
from headwater.capture.mysql.binlog import events as binlog
from headwater.capture.mysql.binlog import positions
from headwater.capture.mysql.binlog.dump import Dump
from headwater.capture.mysql.binlog.gtids import MariaDbGtids, MySqlGtids
from headwater.capture.mysql.stream.schema_history import SchemaHistory

_PROGRESS_S: Final = 1.0


class StreamPosition:
    """File, position and GTIDs behind the last transaction, and whether that is to be reported."""

    def __init__(
        self,
        dump: Dump,
        gtids: MySqlGtids | MariaDbGtids | None,
        schemas: SchemaHistory,
        after: SourcePosition,
        server_id: int,
    ) -> None:
        self._dump = dump
        self._gtids = gtids
        self._schemas = schemas
        self._server_id = server_id
        self._is_same_server = after.at.get("server") == server_id
        self._file, self._position = after.at["file"], after.at.get("pos", after.at.get("begins"))
        self._reported_at = time.monotonic()
        self.is_unreported = False

    @property
    def is_due(self) -> bool:
        """Whether it is worth an event although the log goes on."""
        return self.is_unreported and time.monotonic() - self._reported_at > _PROGRESS_S

    def current(self) -> dict[str, Any]:
        """The point behind the last transaction."""
        return self._described({"pos": self._position}, self._file, None)

    def of_transaction(self, begins: int, gtid: str | None) -> dict[str, Any]:
        """Of a transaction whose first event begins there."""
        return self._described({"begins": begins}, self._dump.framing.file, gtid)

    def progress(self) -> PositionAdvanced:
        self._reported_at = time.monotonic()
        self.is_unreported = False
        return PositionAdvanced(self.current())

    def committed(self, gtid: str | None, *, is_sent: bool) -> None:
        """A transaction ends where the dump is now."""
        if gtid is not None and self._gtids is not None:
            self._gtids.add(gtid)
        self._file, self._position = self._dump.framing.file, self._dump.position
        self.is_unreported = True
        if is_sent:
            self._reported_at = time.monotonic()  # its own position is news enough

    def pass_event(self, event: binlog.Event) -> None:
        """An event that is no part of a transaction: the log goes on behind it."""
        if event.type == binlog.ROTATE or not event.is_artificial:
            self._move_to(self._dump.framing.file, self._dump.position)
        elif event.type == binlog.GTID_LIST and event.end:
            # MariaDB, asked by GTID: everything up to here was behind us, and is passed over.
            self._move_to(self._dump.framing.file, event.end)

    def pass_heartbeat(self, event: binlog.Event) -> None:
        """The server has nothing more; it reports where its log ends."""
        if event.type == binlog.HEARTBEAT_V2:
            file, position = binlog.read_heartbeat_v2(event)
        else:
            file, position = event.body.decode(), event.end
        if file and position:
            self._move_to(file, position)

    def _move_to(self, file: str, position: int) -> None:
        # Asked by GTID, the server may begin in an older file and pass over what we have; the files
        # of another server have numbers of their own.
        here = positions.order({"file": self._file, "pos": self._position})
        is_ahead = positions.order({"file": file, "pos": position}) > here
        if is_ahead or not self._is_same_server:
            self._is_same_server = self._is_same_server or self._dump.framing.is_described
            if (file, position) != (self._file, self._position):
                self._file, self._position = file, position
                self.is_unreported = True

    def _described(self, offset: dict[str, Any], file: str, gtid: str | None) -> dict[str, Any]:
        position: dict[str, Any] = {"server": self._server_id, "file": file, **offset}
        if self._gtids is not None:
            position["gtids"] = str(self._gtids)
        if gtid is not None:
            position["gtid"] = gtid
        if self._schemas.uncertain:
            position["uncertain"] = sorted(self._schemas.uncertain)
        return position
