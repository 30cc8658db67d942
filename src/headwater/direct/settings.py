"""Settings of [gateway.statsd] and [gateway.zeromq.NAME]. Imported with the configuration, so it
stays light.
"""

import re
from dataclasses import MISSING, dataclass
from typing import Any, Final

from headwater.errors import ConfigError
from headwater.settings import (
    address,
    boolean,
    integer,
    is_loopback,
    one_of,
    parse_duration_ms,
    setting,
    size,
    split_address,
    text,
)

SUB, PULL, PUB, PUSH = "sub", "pull", "pub", "push"
INBOUND: Final = (SUB, PULL)


def _interval_s(value: Any) -> float:
    expected = 'a duration from "100ms" to "1h"'
    try:
        seconds = parse_duration_ms(str(value)) / 1000
    except ValueError as error:
        raise ValueError(expected) from error
    if not 0.1 <= seconds <= 3600:
        raise ValueError(expected)
    return seconds


def _zeromq_address(value: Any) -> str:
    expected = '"tcp://HOST:PORT" or "ipc://FILE"'
    given = str(value)
    if not re.fullmatch(r"tcp://[^\s/]+:(\d+|\*)|ipc://\S+", given):
        raise ValueError(expected)
    if given.startswith("tcp://"):
        try:
            split_address(_plain(given))
        except ValueError as error:
            raise ValueError(expected) from error
    return given


def _plain(tcp: str) -> str:
    """Without ZeroMQ's stars: any port, every address of the machine."""
    host, _, port = tcp.removeprefix("tcp://").rpartition(":")
    return f"{host.replace('*', '0.0.0.0')}:{port.replace('*', '0')}"  # noqa: S104 (not bound here)


@dataclass(frozen=True, slots=True)
class StatsdSettings:
    """The [gateway.statsd] section."""

    listen: str | None = setting(
        None,
        address,
        "UDP address for StatsD metrics, for example `127.0.0.1:8125`. Default: none.",
    )
    topic: str = setting("metrics", text, "Topic for the aggregated metrics.")
    interval: float = setting(10.0, _interval_s, "Time after which each series becomes one record.")
    max_series_bytes: int = setting(
        64 << 20,
        size,
        "Memory for the series of an interval; samples beyond it are counted as lost.",
    )
    allow_insecure_network: bool = setting(
        False,
        boolean,
        "Listen on a network, although anybody there can send metrics: StatsD has no passwords.",
    )

    @property
    def is_on(self) -> bool:
        return self.listen is not None

    def check(self) -> None:
        """Raises ConfigError if a network could write to the topic."""
        if self.listen and not is_loopback(self.listen) and not self.allow_insecure_network:
            raise ConfigError(
                f"StatsD is not received at {self.listen}",
                detail="anybody in that network could write to the topic: StatsD has no passwords",
                hint="listen on 127.0.0.1, or set gateway.statsd.allow_insecure_network = true",
            )


@dataclass(frozen=True, slots=True)
class ZeroMqSettings:
    """One [gateway.zeromq.NAME] section."""

    name: str
    socket: str = setting(
        MISSING,
        one_of(SUB, PULL, PUB, PUSH),
        "Kind of socket: `sub` and `pull` write to the topic, `pub` and `push` read from it.",
    )
    address: str = setting(MISSING, _zeromq_address, "Address: `tcp://HOST:PORT` or `ipc://FILE`.")
    topic: str = setting(MISSING, text, "Topic to write to, or to read from.")
    bind: bool = setting(
        False, boolean, "Bind the address, so that others connect. Default: connect to it."
    )
    subscribe: str | None = setting(
        None,
        text,
        "Of `sub`: beginning of the first frame of messages that are wanted. Default: all.",
    )
    with_key: bool = setting(
        True, boolean, "Of `pub` and `push`: send key and value as two frames, not only the value."
    )
    high_water_mark: int = setting(
        1000, integer(1, 10_000_000), "Messages that are held for each peer."
    )
    max_message_bytes: int = setting(
        65_536, size, "Largest message; with `high_water_mark` it bounds the memory for a peer."
    )
    group: str | None = setting(
        None, text, "Of `push`: consumer group that stores the position. Default: `zeromq-NAME`."
    )
    allow_insecure_network: bool = setting(
        False,
        boolean,
        "Bind an address of a network, although anybody there can connect: there are no passwords.",
    )

    @property
    def is_inbound(self) -> bool:
        return self.socket in INBOUND

    def check(self) -> None:
        """Raises ConfigError if a network could use the topic."""
        is_local = self.address.startswith("ipc://") or is_loopback(_plain(self.address))
        if self.bind and not is_local and not self.allow_insecure_network:
            raise ConfigError(
                f"[gateway.zeromq.{self.name}] does not bind {self.address}",
                detail="anybody in that network could connect: there are no passwords",
                hint="bind 127.0.0.1, or set allow_insecure_network = true",
            )
