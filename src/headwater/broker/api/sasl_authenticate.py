"""SaslAuthenticate: one message of the mechanism that SaslHandshake chose. Versions 0–2.

When the last one is right, the connection speaks for the user that it proved. When one is wrong
the answer is SASL_AUTHENTICATION_FAILED, a tenth of a second later, and the connection ends; it
does not say whether the user or the password was wrong. From version 1 on the answer has how
long the session lasts (KIP-368): as long as the token of OAUTHBEARER, and without end otherwise
(0). A client authenticates again before; another user than before is refused.
"""

import asyncio

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authentication import FAILED_DELAY_S
from headwater.broker.security.sasl import Exchange, OAuthBearer
from headwater.errors import AuthenticationFailed
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)


@serves(SaslAuthenticateRequest, first=0, last=2)
async def sasl_authenticate(
    broker: Broker, request: SaslAuthenticateRequest, context: RequestContext
) -> SaslAuthenticateResponse:
    session = context.connection.session
    mechanism, exchange = session.mechanism, session.exchange
    if exchange is None:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslHandshake comes first",
        )
    try:
        answer = await session.answer(bytes(request.auth_bytes))
    except AuthenticationFailed as error:
        _note_failure(broker, context, exchange, error)
        who = "" if exchange.name is None else f" as {exchange.name[:80]!r}"
        context.connection.authentication_failed(f"authentication{who} by {mechanism}: {error}")
        await asyncio.sleep(FAILED_DELAY_S)
        return SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message=f"Authentication failed: invalid credentials with {mechanism}",
        )
    lifetime_ms = 0
    if isinstance(exchange, OAuthBearer) and exchange.refusal is not None:
        _note_failure(broker, context, exchange, exchange.refusal)  # it need not come back
    if exchange.is_complete:
        lifetime_ms = session.lifetime_ms
        broker.audit.authentication(str(session.principal), context.client_host, mechanism or "")
    return SaslAuthenticateResponse(
        auth_bytes=answer, session_lifetime_ms=lifetime_ms, error_message=None
    )


def _note_failure(
    broker: Broker, context: RequestContext, exchange: Exchange, error: AuthenticationFailed
) -> None:
    broker.audit.authentication(
        f"User:{exchange.name or ''}",
        context.client_host,
        context.connection.session.mechanism or "",
        error=error.what,
    )
