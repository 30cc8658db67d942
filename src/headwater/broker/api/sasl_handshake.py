"""SaslHandshake: the client chooses a mechanism. Version 1.

A mechanism that is not offered (`sasl_mechanisms`) is UNSUPPORTED_SASL_MECHANISM with the list of
those that are, and the connection ends. On a connection that has authenticated it begins the next
authentication (KIP-368), which must be by the same mechanism. One that comes in the middle of a
login ends the connection as well. Where authentication is not by SASL it is ILLEGAL_SASL_STATE.

Deviations: version 0, after which the messages of the mechanism come without a header, is not
served; clients have used version 1 since Kafka 1.0. It is advertised all the same, because some
versions of librdkafka do not log in where they do not see it; they, too, use version 1.
"""

import asyncio

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authentication import FAILED_DELAY_S
from headwater.errors import AuthenticationFailed
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.sasl_handshake import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


@serves(SaslHandshakeRequest, first=1, last=1, advertised_from=0)
async def sasl_handshake(
    broker: Broker, request: SaslHandshakeRequest, context: RequestContext
) -> SaslHandshakeResponse:
    session = context.connection.session
    response = SaslHandshakeResponse(mechanisms=list(broker.authentication.mechanisms))
    if not response.mechanisms:
        response.error_code = ErrorCode.ILLEGAL_SASL_STATE
        return response
    try:
        session.begin(request.mechanism)
    except (KeyError, AuthenticationFailed) as error:
        response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        asked = f"the mechanism {request.mechanism[:40]!r} is not offered"
        context.connection.authentication_failed(
            str(error) if isinstance(error, AuthenticationFailed) else asked
        )
        await asyncio.sleep(FAILED_DELAY_S)
    return response
