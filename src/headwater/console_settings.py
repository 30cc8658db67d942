"""What can be set in [console]. Imported with the configuration, so it stays light."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headwater.settings import address, boolean, list_of, setting, table, text

OFF: Final = "off"


def _schema_file(topic: str, value: Any) -> str:
    return text(value)


def address_or_off(value: Any) -> str:
    """Raises ValueError."""
    if value is False or value == OFF:
        return OFF
    try:
        return address(value)
    except ValueError as error:
        raise ValueError(f'{error}, or "off"') from error


def network(value: Any) -> str:
    """Raises ValueError."""
    try:
        found = ipaddress.ip_network(text(value))
    except ValueError as error:
        raise ValueError("an IP address or network, for example 10.0.0.7 or 10.0.0.0/8") from error
    return str(found.network_address if found.num_addresses == 1 else found)


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The [console] section."""

    listen: str = setting(
        "127.0.0.1:8080",
        address_or_off,
        "Address the console binds; port 0 takes a free one. `off`: `headwater up` starts none.",
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        list_of(",", text),
        "Names by which browsers may ask for the console, besides `localhost`, IP addresses and the"
        " host of `listen`. Outside the file: with `,` between them.",
    )
    trusted_proxies: tuple[str, ...] = setting(
        (),
        list_of(",", network),
        "IP addresses and networks (`10.0.0.0/8`) of proxies whose `X-Forwarded-For` and"
        " `X-Forwarded-Proto` are believed. Outside the file: with `,` between them.",
    )
    tls_cert: str | None = setting(
        None, text, "File with the console's certificate chain (PEM). Set: it speaks HTTPS."
    )
    tls_key: str | None = setting(None, text, "File with the key of `tls_cert` (PEM).")
    allow_insecure_network: bool = setting(
        False,
        boolean,
        "Listen on a network although any client there can read and change everything, or passwords"
        " are sent in the clear.",
    )
    avro_schemas: Mapping[str, str] = table(
        _schema_file,
        "A table of Avro schemas by topic: the name of a file, or JSON. With them the values of"
        " these topics are shown decoded.",
    )

    @property
    def is_on(self) -> bool:
        return self.listen != OFF
