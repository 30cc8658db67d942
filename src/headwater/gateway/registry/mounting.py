"""The schema registry as a part of the gateway: with its login, its callers and their rights.

There is one registry for a gateway, with the gateway's own login. A caller may ask whatever the
right to read the topic `_schemas` allows, and change it with the right to write to it.
"""

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.routing import Route

from headwater.gateway.callers import caller_of
from headwater.gateway.registry.routes import registry_routes
from headwater.gateway.registry.serving import RegistryServing
from headwater.gateway.registry.validation import Validation
from headwater.schema_records import TOPIC
from headwater.schemas.registry.registry import Registry
from headwater.web.listener import require_listener

if TYPE_CHECKING:
    from headwater.gateway.app import Gateway


def mounted_registry(gateway: "Gateway") -> list[Route]:
    """The routes; what is behind them is closed with the gateway."""

    def make() -> Registry:
        login = gateway.authentication.require_own_login()
        require_listener(gateway.config.bootstrap())
        return Registry(gateway.config.bootstrap(), login)

    async def authorise(request: Request, operation: str) -> None:
        caller = caller_of(request)
        caller.require(operation, TOPIC)
        if caller.token is None and caller.name:  # a user: the broker's ACLs decide
            await serving.ensure_open()
            await gateway.access(request).topic(TOPIC, operation)

    serving = RegistryServing(make, authorise, gateway.threads)
    gateway.validation = Validation(gateway, serving)
    gateway.on_close += (serving.close, gateway.validation.close)
    return registry_routes(serving)
