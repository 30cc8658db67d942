"""What can be set in [gateway]. Imported with the configuration, so it stays light."""

import re
from dataclasses import dataclass
from typing import Any, Final

from headwater.console_settings import address_or_off, network
from headwater.settings import boolean, integer, list_of, setting, size, text

OFF: Final = "off"
DEFAULT_LISTEN: Final = "127.0.0.1:8081"


def _origin(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"https?://[^\s/?#]+", value):
        raise ValueError('the origin of a site, for example "https://shop.example"')
    return value.lower()


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The [gateway] section."""

    listen: str = setting(
        OFF,
        address_or_off,
        "Address the gateway binds, for example `127.0.0.1:8081`; port 0 takes a free one. Set:"
        " `headwater up` starts it.",
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        list_of(",", text),
        "Names by which clients may ask for the gateway, besides `localhost`, IP addresses and the"
        " host of `listen`. Outside the file: with `,` between them.",
    )
    allowed_origins: tuple[str, ...] = setting(
        (),
        list_of(",", _origin),
        "Sites (`https://shop.example`) whose pages may ask for the gateway from a browser."
        " Outside the file: with `,` between them.",
    )
    trusted_proxies: tuple[str, ...] = setting(
        (),
        list_of(",", network),
        "IP addresses and networks (`10.0.0.0/8`) of proxies whose `X-Forwarded-For` and"
        " `X-Forwarded-Proto` are believed. Outside the file: with `,` between them.",
    )
    tls_cert: str | None = setting(
        None, text, "File with the gateway's certificate chain (PEM). Set: it speaks HTTPS."
    )
    tls_key: str | None = setting(None, text, "File with the key of `tls_cert` (PEM).")
    require_authentication: bool = setting(
        False,
        boolean,
        "Answer only requests with a token, although the broker has no users. Where it has users,"
        " requests always need a password or a token.",
    )
    allow_insecure_network: bool = setting(
        False,
        boolean,
        "Listen on a network although any client there can read and write everything, or passwords"
        " and tokens are sent in the clear.",
    )
    max_request_bytes: int = setting(
        16 << 20,
        size,
        "Largest body that is taken as a whole, and longest line of a stream. A stream of lines may"
        " have any length.",
    )
    max_buffered_bytes: int = setting(
        256 << 20, size, "Bytes of requests held in memory over all connections."
    )
    max_table_bytes: int = setting(
        512 << 20, size, "Bytes of topics held in memory as tables, for live queries."
    )
    max_connections: int = setting(
        4096,
        integer(2, 10**6),
        "Connections held at a time; one address has at most half of them.",
    )

    webhook_allowed_networks: tuple[str, ...] = setting(
        (),
        list_of(",", network),
        "IP addresses and networks (`10.0.0.0/8`) that webhooks may be sent to although they are"
        " not public, and by `http://`. Outside the file: with `,` between them.",
    )

    @property
    def is_on(self) -> bool:
        return self.listen != OFF
