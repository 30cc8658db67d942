"""The right to a category of events is the right to the topic that its events are published to.

So whoever may read `outbox.event.account` may read the events of account-…, before and after they
are in the topic, and who may write to it may append. The topic need not exist: brokers say what a
user may do with a name. A read of everything, and a condition over everything, need the right to
read each category that there is.
"""

from collections.abc import Iterable
from typing import Final

from starlette.requests import Request

from headwater.capture.records.outbox import TOPICS
from headwater.gateway.answers import Refusal
from headwater.gateway.app import gateway_of
from headwater.gateway.callers import READ, caller_of

_ALL: Final = "no right to read all categories of events"


class Rights:
    """Of who sent a request."""

    def __init__(self, request: Request) -> None:
        self._gateway = gateway_of(request)
        self._request = request
        self._caller = caller_of(request)

    async def require(self, operation: str, category: str) -> None:
        """Raises Refusal. The answer does not depend on whether there are such events."""
        topic = TOPICS + category
        self._caller.require(operation, topic)
        if self._gateway.authentication.has_users:
            access = self._gateway.access(self._request)
            access.in_use += 1
            try:
                await access.require(topic, operation)
            finally:
                access.in_use -= 1

    async def require_all(self, categories: Iterable[str]) -> None:
        """To read all of these, which are all that there are. Raises Refusal that names none."""
        for category in categories:
            if not await self.may_read(category):
                raise Refusal(
                    403,
                    _ALL,
                    hint=f"`headwater acl add USER --allow read --topic {TOPICS} --prefix`, or"
                    " read one category: GET /events?category=NAME",
                )

    async def require_everything(self) -> None:
        """To read what the store has now."""
        await self.require_all(
            await self._gateway.event_store.read(lambda store: store.categories())
        )

    async def may_read(self, category: str) -> bool:
        try:
            await self.require(READ, category)
        except Refusal as refusal:
            if refusal.status != 403:
                raise
            return False
        return True
