"""One question to one broker over a socket of our own, for what librdkafka cannot ask.

Used for ApiVersions (who answers at this address?), DescribeLogDirs (sizes on disk),
DescribeAcls (whose refusal librdkafka does not tell) and DescribeUserScramCredentials (whose
refusal ends the process in librdkafka 2.16, by a segmentation fault).
"""

import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Any, TypeVar

from headwater.cli import login
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
    *,
    properties: Mapping[str, Any] | None = None,
) -> _Response:
    """Sends `request`, returns the answer. Raises BrokerUnreachable, or MalformedMessage if what
    answers does not speak Kafka. `properties` are librdkafka's: TLS and SASL as they say.
    """
    try:
        with login.connect(address, properties or {}, timeout_s, _ask) as connection:
            return _ask(connection, request, response, version)
    except ssl.SSLError as error:
        raise login.no_tls(address, error) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise BrokerUnreachable(f"no broker answers at {address}", detail=reason.lower()) from error


def try_login(address: str, properties: Mapping[str, Any], timeout_s: float) -> None:
    """As `login.connect`; what wants TLS or speaks another protocol is found out, too."""
    with login.connect(address, properties, timeout_s, _ask) as connection:
        try:
            _ask(connection, ApiVersionsRequest(), ApiVersionsResponse, 0)
        except ssl.SSLError as error:
            raise login.no_tls(address, error) from error
        except TimeoutError:
            pass  # a broker may be slow; the command itself waits longer
        except ConnectionError as error:
            wants = "no TLS" if login.is_encrypted(properties) else "TLS"
            raise ConnectionError(
                f"it closes the connection unasked: does it want {wants}? ([client] tls)"
            ) from error


def _ask(
    connection: socket.socket, request: Message, response: type[_Response], version: int
) -> _Response:
    connection.sendall(_framed(request, version))
    (size_bytes,) = struct.unpack(">i", _receive(connection, 4))
    if not 4 <= size_bytes <= _MAX_RESPONSE_BYTES:
        raise MalformedMessage("no Kafka answer", detail=f"a length of {size_bytes} bytes")
    answer = _receive(connection, size_bytes)
    if answer[:4] != struct.pack(">i", _CORRELATION_ID):
        raise MalformedMessage("no Kafka answer", detail="not the number of our request")
    # The header of ApiVersions responses has no tagged fields in any version (KIP-511).
    tagged = version >= response.flexible and request.api_key != ApiVersionsRequest.api_key
    return response.decode(answer[5:] if tagged else answer[4:], version)


def supported_versions(
    address: str, timeout_s: float = 5.0, properties: Mapping[str, Any] | None = None
) -> dict[int, tuple[int, int]]:
    """API key to (first, last) version, of the broker at `address`."""
    answer = ask(
        address, ApiVersionsRequest(), ApiVersionsResponse, 0, timeout_s, properties=properties
    )
    return {each.key: (each.min_version, each.max_version) for each in answer.api_keys}


def log_dirs(address: str, properties: Mapping[str, Any] | None = None) -> DescribeLogDirsResponse:
    """All log directories of the broker at `address`, with the size of each partition in them."""
    key = DescribeLogDirsRequest.api_key
    first, last = supported_versions(address, properties=properties).get(key, (0, -1))
    if last < 1 or first > 4:
        raise MalformedMessage("the broker has no DescribeLogDirs")
    request = DescribeLogDirsRequest(topics=None)
    return ask(address, request, DescribeLogDirsResponse, min(last, 4), properties=properties)


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
