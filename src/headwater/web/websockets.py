"""A connection that was upgraded to a WebSocket: the limits of the HTTP connection go on for it."""

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from headwater.web.connections import Connection


class WebSocketConnection(WebSocketsSansIOProtocol):
    """uvicorn's protocol, on the transport of an HTTP connection that was counted before and is
    until its end. Its client has to take what is sent in time, as with any answer.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.http: Connection | None = None

    def resume_writing(self) -> None:
        if self.http is not None:
            self.http.waiting_since_s = self.loop.time()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.http is not None:
            self.http.upgraded_connection_lost()
