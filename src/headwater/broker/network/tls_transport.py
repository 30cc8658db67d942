"""TLS between a socket and a `Connection`, which sees a transport like any other.

Not asyncio's own, because this counts a connection from its first byte on (a handshake that stalls
is unauthenticated like any other), says in the log why a handshake failed, takes the certificate of
the day, and shares its buffer among all connections: an idle one costs what OpenSSL needs.

    socket ─▶ shared buffer ─▶ incoming BIO ─▶ decrypted straight into the connection's buffer
    socket ◀─ outgoing BIO ◀─ what the connection writes
"""

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

from headwater.broker.security.tls import subject_of

if TYPE_CHECKING:
    from headwater.broker.network.connection import Connection

# One for all: a read fills it, and all of it goes into the BIO, before the next read begins.
_RECEIVED = memoryview(bytearray(256 << 10))
_REASONS = {
    "HTTP_REQUEST": "the client speaks HTTP without TLS",
    "WRONG_VERSION_NUMBER": "the client does not speak TLS: set security.protocol to SSL or"
    " SASL_SSL",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client shows no certificate",
    "UNSUPPORTED_PROTOCOL": "the client's TLS is older than 1.2",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust our certificate (its CA is unknown there)",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not trust our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not trust our certificate",
}


class TlsTransport(asyncio.BufferedProtocol):
    """A protocol to the socket's transport, and a transport to the connection."""

    def __init__(self, connection: "Connection", context: ssl.SSLContext) -> None:
        self._connection = connection
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._transport: Any = None
        self._has_received = False
        self._is_secured = False
        self._has_failed = False
        self._is_reading = True  # the connection takes more

    # ── the socket's side ─────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._connection.connection_made(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.connection_lost(error)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _RECEIVED

    def buffer_updated(self, nbytes: int) -> None:
        self._has_received = True
        self._incoming.write(_RECEIVED[:nbytes])
        self._go_on()

    def eof_received(self) -> bool:
        if self._has_received and not self._is_secured:  # else it only asked who listens
            self._connection.close("the client went away in the middle of the TLS handshake")
        return False

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def _go_on(self) -> None:
        """Does what the received bytes allow: the handshake, then the connection's reading."""
        try:
            if not self._is_secured:
                self._tls.do_handshake()
                self._is_secured = True
                self._connection.secured(subject_of(self._tls))
            while self._is_reading and not self._transport.is_closing():
                if not self._deliver():
                    break
        except ssl.SSLWantReadError:  # the handshake goes on
            pass
        except ssl.SSLError as error:
            self._send()
            self._has_failed = True
            reason = _reason(error, is_handshake=not self._is_secured)
            if _is_of_certificate(error):
                self._connection.certificate_refused(reason)
            self._connection.close(reason)
            return
        self._send()

    def _deliver(self) -> bool:
        """Fills the connection's buffer as far as there is something; whether it became full.

        OpenSSL gives one record at a time: 16 KiB from Java, 1 or 2 from librdkafka. A call of the
        connection costs more than that does.
        """
        filled_bytes = 0
        read: Any = self._tls.read
        # A separate view, released at the end: the connection's buffer could not grow otherwise.
        with self._connection.get_buffer(-1)[:] as buffer:
            size_bytes = len(buffer)
            try:
                while filled_bytes < size_bytes:
                    rest = size_bytes - filled_bytes
                    received_bytes = read(rest, buffer[filled_bytes:])
                    if received_bytes == 0:  # the client has closed its side
                        self._transport.close()
                        break
                    filled_bytes += received_bytes
            except ssl.SSLWantReadError:
                pass
        if filled_bytes:
            self._connection.buffer_updated(filled_bytes)
        return filled_bytes == size_bytes

    # ── the connection's side ─────────────────────────────────────────────────────────────────

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self._transport.is_closing():
            self._tls.write(data)  # all of it: the BIO grows
            self._send()

    def pause_reading(self) -> None:
        self._is_reading = False
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._is_reading = True
        self._transport.resume_reading()
        # What is decrypted already, or in the BIO, is announced by no socket.
        asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if self._is_secured and not self._transport.is_closing():
            self._go_on()

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        if self._has_failed:
            self._transport.close()  # when the alert with the reason is sent
        else:
            self._transport.abort()

    def is_closing(self) -> bool:
        closing: bool = self._transport.is_closing()
        return closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def _send(self) -> None:
        if self._outgoing.pending and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())


def _is_of_certificate(error: ssl.SSLError) -> bool:
    """Whether the client has none, or one that does not count."""
    is_missing = error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE"
    return is_missing or isinstance(error, ssl.SSLCertVerificationError)


def _reason(error: ssl.SSLError, *, is_handshake: bool) -> str:
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    what = "TLS handshake" if is_handshake else "TLS"
    return f"{what}: {_REASONS.get(reason, reason.replace('_', ' ').lower())}"
