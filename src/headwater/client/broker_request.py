"""One question to one broker over a socket of our own, for what librdkafka cannot ask.

Used for ApiVersions (who answers at this address?), DescribeLogDirs (sizes on disk),
DescribeAcls (whose refusal librdkafka does not tell) and DescribeUserScramCredentials (whose
refusal ends the process in librdkafka 2.16, by a segmentation fault).
"""

import ssl
from collections.abc import Mapping
from typing import Any, TypeVar

from headwater.client import login
from headwater.client.connection import Connection
from headwater.errors import BrokerUnreachable, MalformedMessage
from headwater.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headwater.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from headwater.protocol.schema import Message

_Response = TypeVar("_Response", bound=Message)


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
        with Connection(address, properties, timeout_s) as connection:
            return connection.exchange(request, response, version)
    except ssl.SSLError as error:
        raise login.no_tls(address, error) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise BrokerUnreachable(f"no broker answers at {address}", detail=reason.lower()) from error


def try_login(address: str, properties: Mapping[str, Any], timeout_s: float) -> None:
    """As opening a Connection; what wants TLS or speaks another protocol is found out, too."""
    with Connection(address, properties, timeout_s) as connection:
        try:
            connection.exchange(ApiVersionsRequest(), ApiVersionsResponse, 0)
        except ssl.SSLError as error:
            raise login.no_tls(address, error) from error
        except TimeoutError:
            pass  # a broker may be slow; the command itself waits longer
        except ConnectionError as error:
            wants = "no TLS" if login.is_encrypted(properties) else "TLS"
            raise ConnectionError(
                f"it closes the connection unasked: does it want {wants}? ([client] tls)"
            ) from error


def supported_versions(
    address: str, timeout_s: float = 5.0, properties: Mapping[str, Any] | None = None
) -> dict[int, tuple[int, int]]:
    """API key to (first, last) version, of the broker at `address`."""
    answer = ask(
        address, ApiVersionsRequest(), ApiVersionsResponse, 0, timeout_s, properties=properties
    )
    return {api.key: (api.min_version, api.max_version) for api in answer.api_keys}


def log_dirs(address: str, properties: Mapping[str, Any] | None = None) -> DescribeLogDirsResponse:
    """All log directories of the broker at `address`, with the size of each partition in them."""
    key = DescribeLogDirsRequest.api_key
    first, last = supported_versions(address, properties=properties).get(key, (0, -1))
    if last < 1 or first > 4:
        raise MalformedMessage("the broker has no DescribeLogDirs")
    request = DescribeLogDirsRequest(topics=None)
    return ask(address, request, DescribeLogDirsResponse, min(last, 4), properties=properties)
