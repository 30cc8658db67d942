"""Who asks: nobody in particular, a user of the broker, or a machine with a token."""

import re
from dataclasses import dataclass
from typing import Final

from starlette.requests import HTTPConnection

from headwater.gateway.answers import Refusal
from headwater.gateway.tokens import Token
from headwater.settings import ClientSettings

READ, WRITE = "read", "write"
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Caller:
    """The login is what the broker sees; it decides what a user may do. The rights of a token are
    narrower than those of its login, which is the gateway's own.
    """

    name: str  # "": nobody in particular; "user:ada", "token:3f9a…"
    login: ClientSettings
    token: Token | None = None

    def require(self, operation: str, topic: str) -> None:
        """Raises Refusal if the token does not allow it, or nobody may do it here. The answer is
        the same whether there is such a topic or not.
        """
        if not is_topic_name(topic):
            raise Refusal(400, "this is no name of a topic", detail=topic[:300])
        if topic.startswith("__"):
            raise Refusal(
                403, "internal topics are not served here", hint="their names begin with __"
            )
        if self.token is not None and not self.token.allows(operation, topic):
            raise Refusal(
                403,
                f"no right to {operation} topic {topic}",
                hint="`headwater token create` makes a token with other rights",
            )


def is_topic_name(text: str) -> bool:
    return _TOPIC.fullmatch(text) is not None and text not in (".", "..")


def caller_of(request: HTTPConnection) -> Caller:
    """As the guard has found it."""
    caller: Caller = request.state.caller
    return caller
