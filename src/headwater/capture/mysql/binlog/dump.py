"""The binlog dump: requests the log of the server as a replica does, and receives its events.

The order is that of a replica: announce which checksums and heartbeats we understand, register,
ask. From then on the server only sends.
"""

import struct
from typing import Any, Final

from headwater.capture.mysql.binlog.events import ROTATE, Event, Framing, read_rotate
from headwater.capture.mysql.binlog.gtids import MySqlGtids
from headwater.capture.mysql.connection import PacketReader, error_of, translated
from headwater.capture.mysql.server import Server, is_replicating, lacking_gtids
from headwater.databases.mysql import Address, connect, unreachable
from headwater.errors import PositionLost, SourceUnreachable

HEARTBEAT_S: Final = 1
SILENCE_S: Final = 30.0  # of a server that should have sent thirty heartbeats
_COM_REGISTER_SLAVE, _COM_BINLOG_DUMP, _COM_BINLOG_DUMP_GTID = 0x15, 0x12, 0x1E
_SEND_ANNOTATIONS: Final = 0x02  # MariaDB: the statements' texts too
_THROUGH_GTID: Final = 0x04
_PATIENCE_S: Final = 31_536_000  # how long the server waits for a reader that has paused


class Dump:
    """Events from a file and position on, or behind a set of GTIDs."""

    def __init__(
        self,
        address: Address,
        server: Server,
        server_id: int,
        *,
        file: str = "",
        position: int = 4,
        gtids: str | None = None,
        with_statements: bool = False,
    ) -> None:
        self._address = address
        self.is_by_gtid = bool(gtids)
        self._connection = connect(address, read_timeout=SILENCE_S)
        self.framing = Framing(has_checksums=server.has_checksums, file=file)
        try:
            with translated(address, is_in=True):
                if gtids and not server.is_mariadb:
                    self._check_history(gtids)
                self._introduce(server, server_id, gtids if server.is_mariadb else None)
                self._ask(server, server_id, file, position, gtids, with_statements)
        except BaseException:
            self.close()
            raise
        self._packets = PacketReader(self._connection, address)
        self.position = position  # behind the last event, in the file `framing.file`

    def event(self, wait_s: float) -> Event | None:
        """The next one; None if none came within `wait_s`."""
        packet = self._packets.packet(wait_s, SILENCE_S)
        if packet is None:
            return None
        status = packet[0] if packet else 0xFE
        if status == 0:
            event = self.framing.event(packet, 1)
            if event.type == ROTATE:
                try:
                    self.framing.file, self.position = read_rotate(event)
                except ValueError as error:
                    raise self.framing.malformed(event.end, str(error)) from error
            elif event.end and not event.is_artificial:
                self.position = event.end
            return event
        if status == 0xFF:
            raise error_of(packet, self._address)
        raise unreachable(self._address, "it ended the binlog")

    def log_position(self) -> dict[str, Any]:
        """Behind the last event."""
        return {"file": self.framing.file, "pos": self.position}

    def waited(self) -> None:
        self._packets.waited()

    def close(self) -> None:
        self._connection._force_close()  # noqa: SLF001 (a command is in progress, nothing can be said)

    def _check_history(self, gtids: str) -> None:
        """MySQL sends what is not in `gtids`, and does not ask whether it has all that is: after a
        failover to a server that lacked our last transactions, what took their place would come
        without an error. (MariaDB compares by itself.) Asked on the connection that then reads.
        """
        lacking = lacking_gtids(self._connection, gtids)
        if not lacking:
            return
        if is_replicating(self._connection):
            raise SourceUnreachable(
                f"the server at {self._address} is a replica that is behind the capture",
                detail=f"it does not have {lacking[:200]} yet",
                hint="the capture goes on when the replica has caught up: SHOW REPLICA STATUS",
            )
        raise PositionLost(
            "the server does not have all transactions that the capture has read",
            detail=f"{lacking[:200]}: lost in a failover, or of a server with another history",
            hint="if a replica has them, make that one the source",
        )

    def _introduce(self, server: Server, server_id: int, mariadb_gtids: str | None) -> None:
        period_ns = HEARTBEAT_S * 1_000_000_000
        settings = [
            f"@master_heartbeat_period = {period_ns}",
            f"@source_heartbeat_period = {period_ns}",
            "@master_binlog_checksum = @@global.binlog_checksum",
            "@source_binlog_checksum = @@global.binlog_checksum",
            f"net_write_timeout = {_PATIENCE_S}",
        ]
        if server.is_mariadb:
            settings.append("@mariadb_slave_capability = 4")  # GTIDs, and all that came with them
        if mariadb_gtids:
            settings += [
                f"@slave_connect_state = {self._connection.escape(mariadb_gtids)}",
                "@slave_gtid_strict_mode = 0",
                "@slave_gtid_ignore_duplicates = 0",
            ]
        if not server.is_mariadb:
            uuid = f"{server_id:08x}-0000-4000-8000-{server_id:012x}"
            settings.append(f"@slave_uuid = '{uuid}', @replica_uuid = '{uuid}'")
        self._command(0x03, f"SET {', '.join(settings)}".encode())
        # server id (4), host, user, password (each with its length), port (2), rank (4), master (4)
        self._command(
            _COM_REGISTER_SLAVE,
            struct.pack("<I", server_id) + b"\0\0\0" + struct.pack("<HII", 0, 0, 0),
        )

    def _command(self, command: int, data: bytes) -> Any:
        connection = self._connection
        connection._execute_command(command, data)  # noqa: SLF001
        return connection._read_packet()  # noqa: SLF001

    def _ask(
        self,
        server: Server,
        server_id: int,
        file: str,
        position: int,
        gtids: str | None,
        with_statements: bool,
    ) -> None:
        flags = _SEND_ANNOTATIONS if with_statements and server.is_mariadb else 0
        if gtids and not server.is_mariadb:
            executed = MySqlGtids(gtids).encoded()
            self._connection._execute_command(  # noqa: SLF001
                _COM_BINLOG_DUMP_GTID,
                struct.pack("<HIIQI", _THROUGH_GTID, server_id, 0, 4, len(executed)) + executed,
            )
            return
        name = b"" if gtids else file.encode()
        self._connection._execute_command(  # noqa: SLF001
            _COM_BINLOG_DUMP, struct.pack("<IHI", 4 if gtids else position, flags, server_id) + name
        )
