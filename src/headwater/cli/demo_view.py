"""What the demo shows: the latest orders and a summary, live on a terminal, as lines elsewhere."""

import time
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, Self

import orjson

from headwater.cli.output import path_to_type, plural, say, terminal

SENT_HEADER: Final = "sent-ns"
_SUMMARY_EVERY_S: Final = 5.0
_REFRESH_PER_SECOND: Final = 8


@dataclass(slots=True)
class Seen:
    """What came back out of the log so far."""

    orders: int = 0
    total_cents: int = 0
    by_country: dict[str, int] = field(default_factory=dict)
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))
    recent: deque[tuple[Any, dict[str, Any]]] = field(default_factory=lambda: deque(maxlen=10))
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None

    def add(self, message: Any, received_ns: int) -> None:
        order = orjson.loads(message.value())
        ((_, sent_ns),) = message.headers()
        self.orders += 1
        self.total_cents += order["total_cents"]
        country = order["country"]
        self.by_country[country] = self.by_country.get(country, 0) + order["total_cents"]
        self.latencies_ms.append((received_ns - int(sent_ns)) / 1e6)
        self.recent.append((message, order))

    def end(self) -> None:
        self.ended_s = time.monotonic()

    def summary(self) -> dict[str, Any]:
        """p50_ms and p99_ms: from the producer's call to the consumer's hands."""
        elapsed_s = (self.ended_s or time.monotonic()) - self.began_s
        ordered = sorted(self.latencies_ms)
        return {
            "records": self.orders,
            "seconds": round(elapsed_s, 3),
            "records_per_second": round(self.orders / elapsed_s, 1) if elapsed_s else 0.0,
            "p50_ms": round(ordered[len(ordered) // 2], 3) if ordered else None,
            "p99_ms": round(ordered[len(ordered) * 99 // 100], 3) if ordered else None,
        }

    def line(self) -> str:
        numbers = self.summary()
        if not self.orders:
            return "no orders were read"
        return (
            f"{plural(self.orders, 'order')} worth {self.total_cents / 100:,.2f} €"
            f" in {numbers['seconds']:.1f} s ({numbers['records_per_second']:.0f}/s),"
            f" from produce to consume p50 {numbers['p50_ms']:.1f} ms,"
            f" p99 {numbers['p99_ms']:.1f} ms"
        )


class View(AbstractContextManager["View"], Protocol):
    """Shown while it is entered."""

    def show(self, message: Any, seen: Seen) -> None:
        """`message` has just been read and is counted in `seen`."""
        ...


def view_for(bootstrap: str, *, quiet: bool) -> View:
    if quiet:
        return _Silent()
    return _Live(bootstrap) if terminal() else _Lines(bootstrap)


def to_try(bootstrap: str) -> list[str]:
    """What a newcomer may do next, in another terminal."""
    return [
        *path_to_type(),
        f"headwater consume orders -b {bootstrap} -o start",
        f"headwater topic describe orders -b {bootstrap}",
        f"headwater status -b {bootstrap}",
        f"kcat -C -b {bootstrap} -t orders -c 5",
    ]


class _Silent(View):
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def show(self, message: Any, seen: Seen) -> None:
        pass


class _Lines(View):
    def __init__(self, bootstrap: str) -> None:
        self._commands = to_try(bootstrap)
        self._next_summary_s = time.monotonic() + _SUMMARY_EVERY_S

    def __enter__(self) -> Self:
        say("try, in another terminal:")
        say("\n".join(f"  {command}" for command in self._commands) + "\n")
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def show(self, message: Any, seen: Seen) -> None:
        _, order = seen.recent[-1]
        say(
            f"{_where(message):>8}  order {order['order_id']}  {order['country']}"
            f"  {order['total_cents'] / 100:>8,.2f} €  customer {order['customer_id']}:"
            f" {_items(order)}"
        )
        if time.monotonic() > self._next_summary_s:
            self._next_summary_s += _SUMMARY_EVERY_S
            say(f"-- {seen.line()}")


class _Live(View):
    def __init__(self, bootstrap: str) -> None:
        from rich.live import Live

        self._commands = to_try(bootstrap)
        self._live = Live(refresh_per_second=_REFRESH_PER_SECOND)
        self._next_s = 0.0

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.__exit__(None, None, None)

    def show(self, message: Any, seen: Seen) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + 1 / _REFRESH_PER_SECOND
        self._live.update(self._screen(seen))

    def _screen(self, seen: Seen) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        latest = Table(box=None, padding=(0, 2, 0, 0), expand=True, header_style="bold")
        for title in ("partition@offset", "order", "total", "country", "customer"):
            justify: Literal["left", "right"] = "left" if title.startswith("c") else "right"
            latest.add_column(title, justify=justify, no_wrap=True)
        latest.add_column("items", ratio=1, no_wrap=True, overflow="ellipsis")
        for message, order in seen.recent:
            latest.add_row(
                Text(_where(message), "dim"),
                str(order["order_id"]),
                f"{order['total_cents'] / 100:,.2f} €",
                order["country"],
                Text(str(order["customer_id"]), "cyan"),
                Text(_items(order), "dim"),
            )
        best = sorted(seen.by_country.items(), key=lambda pair: -pair[1])[:5]
        countries = "   ".join(f"{name} {cents / 100:,.0f} €" for name, cents in best)
        commands = "\n".join(f"  {command}" for command in self._commands)
        return Group(
            "",
            latest,
            "",
            Text(seen.line(), "bold"),
            Text(f"by country: {countries}"),
            "",
            Text(f"try, in another terminal:\n{commands}\nCtrl-C ends it", "dim"),
        )


def _where(message: Any) -> str:
    return f"{message.partition()}@{message.offset()}"


def _items(order: dict[str, Any]) -> str:
    return ", ".join(f"{item['quantity']} × {item['product']}" for item in order["items"])
