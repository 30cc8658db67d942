"""The gateway's budget of bytes in memory, which refuses requests for which there is no room."""

from headwater.gateway.answers import Refusal
from headwater.web.byte_budget import ByteBudget


class Budget(ByteBudget):
    """For the event loop's thread."""

    def take_now(self, size_bytes: int) -> None:
        """Raises Refusal if there is no room."""
        if not self.try_take(size_bytes):
            raise Refusal(
                503,
                "too many requests are being sent",
                hint="try again in a moment",
                headers={"Retry-After": "1"},
            )
