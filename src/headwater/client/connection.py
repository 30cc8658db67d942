"""One socket to one broker: pipelined requests, responses in the order of the requests."""

import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self, TypeVar

import headwater
from headwater.client import login
from headwater.errors import MalformedMessage, RequestRefused
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headwater.protocol.primitives import Out, Reader, write_int16, write_int32, write_string
from headwater.protocol.schema import Message
from headwater.settings import split_address

_Response = TypeVar("_Response", bound=Message)

CLIENT_ID: Final = "headwater"
_API_VERSIONS_VERSION: Final = 3  # the first that has the cluster's features
_MAX_RESPONSE_BYTES: Final = 1 << 28
_STEP_BYTES: Final = 16 << 20
_LENGTH = struct.Struct(">i")
_REFUSED_VERSION = struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)


class _Sent(NamedTuple):
    correlation_id: int
    response: type[Message]
    version: int
    is_tagged: bool  # whether the response's header has tagged fields


class Connection:
    """Connected and logged in, as the properties (librdkafka's) say.

    Raises OSError if there is no response in time or the connection is lost, MalformedMessage if
    what answers does not speak Kafka, RequestRefused if one side does not believe the other. After
    any of them the connection is of no more use. To be used by one thread at a time.
    """

    def __init__(
        self, address: str, properties: Mapping[str, Any] | None = None, timeout_s: float = 30.0
    ) -> None:
        properties = properties or {}
        self.address = address
        self._timeout_s = timeout_s
        self._correlation_id = 0
        self._sent: deque[_Sent] = deque()
        self._api_versions: ApiVersionsResponse | None = None
        self._socket = socket.create_connection(split_address(address), timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if login.is_encrypted(properties):
                self._socket = login.encrypted(self._socket, address, properties)
            if login.uses_sasl(properties):
                login.log_in(self.exchange, properties)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """A thread that waits for a response gets an error at once."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    # One question, one answer

    def ask(
        self, request: Message, response: type[_Response], *, first: int, last: int
    ) -> _Response:
        """In the highest version from `first` to `last` that the broker serves."""
        return self.exchange(request, response, self.version(type(request), first, last))

    def exchange(self, request: Message, response: type[_Response], version: int) -> _Response:
        """In exactly this version."""
        assert not self._sent, "an answer would be taken for that to another request"
        self.send(request, response, version)
        return self.receive()  # type: ignore[no-any-return]

    # Several requests on their way

    def send(self, request: Message, response: type[Message], version: int) -> None:
        """Does not wait for the answer: that is what the next `receive` is for."""
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        # The header of ApiVersions responses has no tagged fields in any version (KIP-511).
        is_tagged = version >= response.flexible and response is not ApiVersionsResponse
        self._sent.append(_Sent(self._correlation_id, response, version, is_tagged))
        self._socket.settimeout(self._timeout_s)
        self._socket.sendall(_framed(request, version, self._correlation_id))

    def receive(self) -> Any:
        """The answer to the oldest request that has none yet."""
        sent = self._sent.popleft()
        deadline_s = time.monotonic() + self._timeout_s
        (size_bytes,) = _LENGTH.unpack(self._exactly(4, deadline_s))
        if not 4 <= size_bytes <= _MAX_RESPONSE_BYTES:
            raise MalformedMessage("no Kafka answer", detail=f"a length of {size_bytes} bytes")
        reader = Reader(self._exactly(size_bytes, deadline_s))
        if reader.int32() != sent.correlation_id:
            raise MalformedMessage("no Kafka answer", detail="not the number of our request")
        version = sent.version
        if sent.is_tagged:
            reader.skip_tagged_fields()
        elif sent.response is ApiVersionsResponse and reader.data[4:6] == _REFUSED_VERSION:
            version = 0  # of the response, if the broker does not support the one requested
        return sent.response.read(reader, version)

    def _exactly(self, size_bytes: int, deadline_s: float) -> bytearray:
        """Received in place; a length costs no memory before the bytes are there."""
        received = bytearray(min(size_bytes, _STEP_BYTES))
        at = 0
        while at < size_bytes:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"no answer from {self.address} in {self._timeout_s:g} s")
            self._socket.settimeout(left_s)
            if at == len(received):
                received += bytes(min(size_bytes - at, _STEP_BYTES))
            with memoryview(received) as room, room[at:] as rest:
                count = self._socket.recv_into(rest)
            if not count:
                raise ConnectionError("the connection was closed before the answer was whole")
            at += count
        return received

    # What the broker can do

    def version(self, request: type[Message], first: int, last: int) -> int:
        """The highest that it serves of these versions; RequestRefused if there is none."""
        for api in self._capabilities().api_keys:
            if api.key == request.api_key and max(first, api.min_version) <= min(
                last, api.max_version
            ):
                return min(last, api.max_version)
        name = request.__name__.removesuffix("Request")
        raise RequestRefused(
            f"the broker at {self.address} does not serve {name} as it is needed",
            detail=f"versions {first} to {last}",
            hint="Apache Kafka from version 2.5 on does",
        )

    def feature(self, name: str) -> int:
        """The level of a feature that all of the cluster has (KIP-584); 0 if it is off."""
        for feature in self._capabilities().finalized_features:
            if feature.name == name:
                return feature.max_version_level
        return 0

    def _capabilities(self) -> ApiVersionsResponse:
        if self._api_versions is None:
            request = ApiVersionsRequest(
                client_software_name=CLIENT_ID, client_software_version=headwater.__version__
            )
            answer = self.exchange(request, ApiVersionsResponse, _API_VERSIONS_VERSION)
            if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
                answer = self.exchange(ApiVersionsRequest(), ApiVersionsResponse, 0)
            self._api_versions = answer
        return self._api_versions


def _framed(request: Message, version: int, correlation_id: int) -> Out:
    """Length, then header v1 (v2 in flexible versions), then the body.

    int32 length │ int16 api key │ int16 version │ int32 correlation id │ string client id │ [tags]
    """
    frame = Out(bytes(4))
    write_int16(frame, request.api_key)
    write_int16(frame, version)
    write_int32(frame, correlation_id)
    write_string(frame, CLIENT_ID)
    if version >= request.flexible:
        frame.append(0)
    request.write(frame, version)
    _LENGTH.pack_into(frame, 0, len(frame) - 4)
    return frame
