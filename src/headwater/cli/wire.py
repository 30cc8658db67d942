"""One question to one broker over a plain socket, for what librdkafka cannot ask.

Used for ApiVersions (who answers at this address?) and DescribeLogDirs (sizes on disk).
"""

import socket
import struct
from typing import TypeVar

from headwater.config import split_address
from headwater.errors import BrokerUnreachable, MalformedMessage
from headwater.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headwater.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from headwater.protocol.primitives import write_int16, write_int32, write_string
from headwater.protocol.schema import Message

_Response = TypeVar("_Response", bound=Message)
_CORRELATION_ID = 1
_MAX_RESPONSE_BYTES = 1 << 28


def ask(
    address: str,
    request: Message,
    response: type[_Response],
    version: int,
    timeout_s: float = 5.0,
) -> _Response:
    """Sends `request`, returns the answer. Raises BrokerUnreachable, or MalformedMessage if what
    answers does not speak Kafka.
    """
    try:
        with socket.create_connection(split_address(address), timeout_s) as connection:
            connection.sendall(_framed(request, version))
            (size_bytes,) = struct.unpack(">i", _receive(connection, 4))
            if not 4 <= size_bytes <= _MAX_RESPONSE_BYTES:
                raise MalformedMessage("no Kafka answer", detail=f"a length of {size_bytes} bytes")
            answer = _receive(connection, size_bytes)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BrokerUnreachable(f"no broker answers at {address}", detail=reason.lower()) from error
    if answer[:4] != struct.pack(">i", _CORRELATION_ID):
        raise MalformedMessage("no Kafka answer", detail="not the number of our request")
    # The header of ApiVersions responses has no tagged fields in any version (KIP-511).
    tagged = version >= response.flexible and request.api_key != ApiVersionsRequest.api_key
    return response.decode(answer[5:] if tagged else answer[4:], version)


def supported_versions(address: str, timeout_s: float = 5.0) -> dict[int, tuple[int, int]]:
    """API key to (first, last) version, of the broker at `address`."""
    answer = ask(address, ApiVersionsRequest(), ApiVersionsResponse, 0, timeout_s)
    return {each.key: (each.min_version, each.max_version) for each in answer.api_keys}


def log_dirs(address: str) -> DescribeLogDirsResponse:
    """All log directories of the broker at `address`, with the size of each partition in them."""
    key = DescribeLogDirsRequest.api_key
    first, last = supported_versions(address).get(key, (0, -1))
    if last < 1 or first > 4:
        raise MalformedMessage("the broker has no DescribeLogDirs")
    return ask(address, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, min(last, 4))


def _framed(request: Message, version: int) -> bytes:
    """Length, then header v1 (v2 in flexible versions), then the body.

    int32 length │ int16 api key │ int16 version │ int32 correlation id │ string client id │ [tags]
    """
    header = bytearray()
    write_int16(header, request.api_key)
    write_int16(header, version)
    write_int32(header, _CORRELATION_ID)
    write_string(header, "headwater")
    if version >= request.flexible:
        header.append(0)
    body = request.encode(version)
    return struct.pack(">i", len(header) + len(body)) + bytes(header) + bytes(body)


def _receive(connection: socket.socket, size_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < size_bytes:
        chunk = connection.recv(min(size_bytes - len(received), 1 << 20))
        if not chunk:
            raise ConnectionError("the connection was closed before the answer was whole")
        received += chunk
    return bytes(received)
