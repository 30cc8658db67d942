"""Counters of webhooks for Prometheus: what was sent, has failed, was repeated, and waits.

They count for this process, over restarts of the deliveries within it. A webhook that another
gateway sends has none here.
"""

from collections import Counter
from collections.abc import Iterator

from headwater.prometheus_text import family

_COUNTERS = (
    ("sent_records", "Records that a receiver has taken."),
    ("failed_attempts", "Requests to a receiver that have failed."),
    ("retries", "Requests that repeated an earlier one."),
    ("dead_letters", "Records that became dead letters."),
    ("lost_records", "Records that retention deleted before they were sent."),
)


class WebhookMetrics:
    """Written by the thread of the deliveries, read by any."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()  # by name of the counter, and webhook
        self.backlog: dict[str, int] = {}  # records of its topics that it has not passed
        self.failing: dict[str, bool] = {}

    def count(self, counter: str, webhook: str, number: int = 1) -> None:
        self.counts[counter, webhook] += number

    def forget(self, webhook: str) -> None:
        """It is no longer sent from here; what was counted stays."""
        self.backlog.pop(webhook, None)
        self.failing.pop(webhook, None)

    def lines(self) -> Iterator[str]:
        counts = dict(self.counts)
        for counter, text in _COUNTERS:
            samples = sorted(
                (webhook, number) for (name, webhook), number in counts.items() if name == counter
            )
            yield from family(
                f"headwater_webhook_{counter}_total",
                "counter",
                text,
                [({"webhook": webhook}, number) for webhook, number in samples],
            )
        for name, text, values in (
            ("backlog_records", "Records of its topics that it has not passed.", self.backlog),
            ("failing", "1 if its receiver has not taken the last request.", self.failing),
        ):
            yield from family(
                f"headwater_webhook_{name}",
                "gauge",
                text,
                [({"webhook": webhook}, value) for webhook, value in sorted(dict(values).items())],
            )
