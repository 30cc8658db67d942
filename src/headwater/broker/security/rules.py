"""Rules for security settings: which go together, and which would leave the broker open."""

import logging
from typing import TYPE_CHECKING

from headwater.errors import ConfigError
from headwater.settings import BrokerSettings, is_loopback

if TYPE_CHECKING:
    from headwater.broker.security.oauth import TokenVerifier

log = logging.getLogger(__name__)

_OPEN = "set allow_insecure_network = true only where no one else reaches that network"


def check(settings: BrokerSettings) -> None:
    """Raises ConfigError for what cannot work, and for what would not be secure."""
    _check_pairs(settings)
    if settings.authentication == "sasl":
        _check_sasl(settings)
    if settings.authentication == "tls" and settings.tls_client_ca is None:
        raise ConfigError(
            "authentication by certificate needs the CAs whose certificates count",
            detail='authentication = "tls" without tls_client_ca',
            hint="tls_client_ca names the CA that signs the clients' certificates",
        )
    _check_network(settings)


def described(settings: BrokerSettings) -> str:
    """What a client meets, in a few words."""
    who = "anybody on this machine" if is_loopback(settings.listen) else "anybody"
    ways = {
        "none": f"{who} can read and change everything at {settings.listen}",
        "sasl": "login by " + ", ".join(settings.sasl_mechanisms),
        "tls": "login by certificate",
    }
    return ways[settings.authentication] + (", over TLS" if settings.tls_cert else ", without TLS")


def token_verifier(settings: BrokerSettings) -> "TokenVerifier | None":
    """Raises ConfigError if its keys cannot be read."""
    if settings.authentication != "sasl" or "OAUTHBEARER" not in settings.sasl_mechanisms:
        return None
    from headwater.broker.security.oauth import TokenVerifier

    verifier = TokenVerifier(
        settings.oauth_jwks_file or "",
        settings.oauth_issuer or "",
        settings.oauth_audience or "",
        settings.oauth_principal_claim,
    )
    verifier.check()
    return verifier


def _check_pairs(settings: BrokerSettings) -> None:
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise ConfigError("tls_cert and tls_key belong together", detail="one of them is missing")
    if settings.tls_client_ca is None:
        return
    if settings.tls_cert is None:
        raise ConfigError(
            "tls_client_ca needs TLS", hint="tls_cert and tls_key make the broker speak it"
        )
    if settings.authentication == "none":
        raise ConfigError(
            "tls_client_ca is set, but clients need not authenticate",
            hint='authentication = "tls" takes the name from the certificate, "sasl" from a login',
        )


def _check_sasl(settings: BrokerSettings) -> None:
    if not settings.sasl_mechanisms:
        raise ConfigError("authentication by SASL needs a mechanism", detail="sasl_mechanisms = []")
    needed = ("oauth_jwks_file", "oauth_issuer", "oauth_audience")
    missing = [name for name in needed if getattr(settings, name) is None]
    if "OAUTHBEARER" in settings.sasl_mechanisms and missing:
        raise ConfigError(
            "OAUTHBEARER needs a key file, an issuer and an audience",
            detail="not set: " + ", ".join(missing),
            hint="without them a token that was made for another service would do here",
        )


def _check_network(settings: BrokerSettings) -> None:
    """What others reach must ask who they are, and no secret may travel in the clear."""
    if settings.allow_insecure_network:
        return
    if not is_loopback(settings.listen):
        if settings.authentication == "none":
            raise ConfigError(
                f"{settings.listen} can be reached from the network, and clients need not"
                " authenticate",
                detail="any client there could read, write and delete everything",
                hint=f'set authentication = "sasl" or "tls" (docs/security.md), or {_OPEN}',
            )
        in_clear = {"PLAIN", "OAUTHBEARER"} & set(settings.sasl_mechanisms)
        if settings.authentication == "sasl" and settings.tls_cert is None:
            if in_clear:
                raise ConfigError(
                    f"{settings.listen} can be reached from the network, and"
                    f" {' and '.join(sorted(in_clear))} would send secrets in the clear",
                    hint=f"set tls_cert and tls_key (docs/security.md), or {_OPEN}",
                )
            log.warning("no TLS at %s: others on the network can read the records", settings.listen)
    if settings.metrics_listen is not None and not is_loopback(settings.metrics_listen):
        raise ConfigError(
            f"metrics_listen {settings.metrics_listen} can be reached from the network, and clients"
            " need not authenticate",
            hint=f"bind it to 127.0.0.1 and let a proxy authenticate, or {_OPEN}",
        )
