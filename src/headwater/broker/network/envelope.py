"""Headers of requests and responses, and bounds of what a request body may hold.

request   int16 API key, int16 version, int32 correlation id, string client id,
tagged fields (flexible versions), body
response  int32 size, int32 correlation id, tagged fields (flexible versions), body
"""

import struct

from headwater.errors import MalformedMessage
from headwater.protocol.messages.api_versions import ApiVersionsResponse
from headwater.protocol.primitives import Out, Reader
from headwater.protocol.schema import Message

_SIZE = struct.Struct(">i")
_SIZE_AND_CORRELATION_ID = struct.Struct(">ii")
# Over all arrays of one request. Each may take but a byte on the wire and a hundred in memory.
MAX_ELEMENTS = 1 << 18


class RequestReader(Reader):
    """Bounds what the arrays of a request hold together, and so the time it takes to read it."""

    __slots__ = ("_elements_left",)

    def __init__(self, data: bytearray) -> None:
        super().__init__(data)
        self._elements_left = MAX_ELEMENTS

    def _checked_count(self, count: int) -> int | None:
        checked = super()._checked_count(count)
        if checked:
            self._elements_left -= checked
            if self._elements_left < 0:
                raise MalformedMessage(f"more than {MAX_ELEMENTS} elements in one request")
        return checked


def response_frame(response: Message, api_version: int, correlation_id: int) -> Out:
    """All of a response as it is sent; its size counts what is spliced in from files."""
    out = Out()
    out += _SIZE_AND_CORRELATION_ID.pack(0, correlation_id)
    # ApiVersions always has the old header: it is sent before versions are negotiated.
    if api_version >= response.flexible and not isinstance(response, ApiVersionsResponse):
        out.append(0)
    response.write(out, api_version)
    spliced_bytes = sum(splice.size_bytes for _, splice in out.splices)
    _SIZE.pack_into(out, 0, len(out) - _SIZE.size + spliced_bytes)
    return out
