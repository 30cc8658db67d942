"""Logins of users at the broker, which decides whether they are right: a server has no users of its
own.
"""

import dataclasses
from typing import Final

from headwater.client import login as client_login
from headwater.client.connection import Connection
from headwater.config import Config
from headwater.errors import BrokerUnreachable, ConfigError, RequestRefused
from headwater.settings import ClientSettings, Secret

_TIMEOUT_S: Final = 10.0
_BY_PASSWORD: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


def is_needed(config: Config) -> bool:
    """Whether the broker authenticates users by passwords."""
    if config.broker.bootstrap is not None:
        return config.client.username is not None
    return config.broker.authentication == "sasl" or config.client.username is not None


def login_of(config: Config, name: str, password: str) -> ClientSettings:
    """A user's login at the broker: over TLS or not as [client] says. Raises ConfigError, and
    RequestRefused without a name, whatever the broker would say: "" stands for who did not sign in.
    """
    if not name:
        raise RequestRefused("a name is needed to sign in")
    offered: tuple[str, ...] = _BY_PASSWORD
    if config.broker.bootstrap is None and config.broker.authentication == "sasl":
        offered = tuple(name for name in _BY_PASSWORD if name in config.broker.sasl_mechanisms)
    if not offered:
        raise ConfigError(
            "sign-in by password is not possible here",
            detail="broker.sasl_mechanisms has only OAUTHBEARER",
            hint="add SCRAM-SHA-256 to it",
        )
    wanted = config.client.sasl_mechanism
    return dataclasses.replace(
        config.client,
        username=name,
        password=Secret(password),
        password_file=None,
        token_file=None,
        sasl_mechanism=wanted if wanted in offered else offered[0],
    )


def try_login(bootstrap: str, login: ClientSettings) -> None:
    """Raises RequestRefused if the broker does not believe it, BrokerUnreachable."""
    properties = client_login.properties_of(login)
    reasons = []
    for address in bootstrap.split(","):
        try:
            Connection(address, properties, _TIMEOUT_S).close()
            return
        except OSError as error:
            reasons.append(f"{address}: {(error.strerror or str(error)).lower()}")
    raise BrokerUnreachable("the broker does not answer", detail="; ".join(reasons))
