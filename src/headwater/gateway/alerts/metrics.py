"""Alerts for Prometheus: which fire, their values, and what became of their notices.

Of several gateways one watches the alerts; the others have no such lines.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from headwater.gateway.alerts.rules import FIRING, PENDING, AlertState
from headwater.prometheus_text import Sample, family

SENT, FAILED, GIVEN_UP = "sent", "failed", "given_up"


class AlertMetrics:
    """Written by the thread that watches, read by any."""

    def __init__(self) -> None:
        self.notices: Counter[tuple[str, str]] = Counter()  # by alert and result
        self.states: Mapping[str, AlertState] = {}  # of this gateway's alerts

    def lines(self) -> Iterator[str]:
        states = sorted(dict(self.states).items())
        for name, text, samples in (
            ("firing", "1 if the alert fires.", _samples(states, FIRING)),
            ("pending", "1 if its condition holds, not for long enough yet.",
             _samples(states, PENDING)),
            ("value", "The value that its condition compares.",
             [({"alert": alert}, state.value) for alert, state in states
              if state.value is not None]),
            ("error", "1 if its value cannot be read.",
             [({"alert": alert}, bool(state.error)) for alert, state in states]),
            ("undelivered_notices", "Notices that wait for their receiver.",
             [({"alert": alert}, len(state.undelivered)) for alert, state in states]),
        ):  # fmt: skip
            yield from family(f"headwater_alert_{name}", "gauge", text, samples)
        yield from family(
            "headwater_alert_notices_total",
            "counter",
            "Attempts to notify a receiver, by result; given_up: after a day.",
            [
                ({"alert": alert, "result": result}, number)
                for (alert, result), number in sorted(dict(self.notices).items())
            ],
        )


def _samples(states: list[tuple[str, AlertState]], wanted: str) -> list[Sample]:
    return [({"alert": alert}, state.state == wanted) for alert, state in states]
