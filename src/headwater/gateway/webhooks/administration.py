"""What the command, the API and the console do with webhooks. All of it blocks."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from headwater.client.group_offsets import GroupOffsets
from headwater.client.reading.compacted import read_committed_latest
from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.client.topics import NewTopic, ensure_topics
from headwater.errors import RequestRefused, UsageError
from headwater.gateway.reading import positions
from headwater.gateway.webhooks import definitions, states
from headwater.gateway.webhooks.definitions import Webhook
from headwater.gateway.webhooks.states import State
from headwater.gateway.webhooks.targets import Network, check_now, parse_target
from headwater.settings import ClientSettings
from headwater.spelling import nearest

_PATIENCE_S: Final = 20.0
_DEAD_LETTER_CONFIGS: Final = {"retention.ms": "-1"}  # they wait for a person


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a webhook is."""

    webhook: Webhook
    state: State
    backlog: int  # records that it has not been sent, whether they pass its filter or not
    dead_letters: int

    @property
    def shown_state(self) -> str:
        return "paused" if self.webhook.paused else self.state.state

    def as_json(self) -> dict[str, Any]:
        """Without secrets."""
        webhook, state = self.webhook, self.state
        return {
            "name": webhook.name,
            "state": self.shown_state,
            "url": webhook.shown_url,
            "topics": webhook.topics,
            "filter": [f"{name}={value}" for name, value in webhook.filter],
            "backlog": self.backlog,
            "dead_letters": self.dead_letters,
            "paused": webhook.paused,
            "max_in_flight": webhook.max_in_flight,
            "timeout_s": webhook.timeout_s,
            "retry_for_s": webhook.retry_for_s,
            "delivered": state.delivered,
            "failed": state.failed,
            "lost": state.lost,
            "last_delivered": _time(state.last_delivered_ms),
            "last_error": state.last_error,
            "last_error_at": _time(state.last_error_ms),
            "failing_since": _time(state.failing_since_ms),
            "group": webhook.group,
            "dead_letter_topic": webhook.dead_letter_topic,
            "owner": webhook.owner,
            "created": _time(webhook.created_ms),
        }


class Administration:
    """With one login, at one cluster."""

    def __init__(
        self, bootstrap: str, login: ClientSettings, *, patience_s: float = _PATIENCE_S
    ) -> None:
        self._bootstrap = bootstrap
        self._login = login
        self._patience_s = patience_s

    def all(self) -> dict[str, Webhook]:
        return definitions.read_all(self._bootstrap, self._login, patience_s=self._patience_s)

    def one(self, name: str) -> Webhook:
        """Raises RequestRefused if there is none."""
        return _existing(self.all(), name)

    def add(self, webhook: Webhook, begin: str, allowed: Sequence[Network]) -> Webhook:
        """Registers it, from a position (`start`, `end`, `-n`, `@TIME`) on. What is written after
        this is sent, whether a gateway runs or not. Raises UsageError, Refusal, RequestRefused.
        """
        if not webhook.secrets:
            webhook = dataclasses.replace(webhook, secrets=(definitions.new_secret(),))
        definitions.check(webhook)
        check_now(parse_target(webhook.url), allowed)
        if webhook.name in self.all():
            raise _taken(webhook.name)
        wanted = positions.parse(begin)
        if isinstance(wanted, dict) and len(webhook.topics) > 1:
            raise UsageError("offsets are positions in one topic", hint="start, end, -n or @TIME")
        begins: dict[str, dict[str, int]] = {}
        ensure_topics(
            self._bootstrap,
            self._login,
            [NewTopic(webhook.dead_letter_topic, 1, _DEAD_LETTER_CONFIGS)],
        )
        with Fetcher(self._bootstrap, self._login, patience_s=self._patience_s) as fetcher:
            for topic in webhook.topics:
                found = positions.resolve(fetcher, topic, fetcher.partitions(topic), wanted)
                begins[topic] = {str(number): offset for number, offset in found.items()}
            letters = self._letters(fetcher, webhook)[1]
        offsets = {
            (topic, int(number)): offset
            for topic, found_ in begins.items()
            for number, offset in found_.items()
        }
        offsets[webhook.dead_letter_topic, 0] = letters  # of an earlier one of this name
        with self._group(webhook) as group:
            group.commit(offsets)
        webhook = dataclasses.replace(
            webhook, begins=begins, redeliver_until=letters, created_ms=states.now_ms()
        )

        def added(present: Mapping[str, Webhook]) -> Webhook:
            if webhook.name in present:
                raise _taken(webhook.name)
            if len(present) >= definitions.MAX_WEBHOOKS:
                raise RequestRefused(f"there are {definitions.MAX_WEBHOOKS} webhooks, and no more")
            return webhook

        self._change(webhook.name, added)
        return webhook

    def pause(self, name: str, reason: str) -> None:
        self._change(
            name, lambda all_: dataclasses.replace(_existing(all_, name), paused=reason[:300])
        )

    def resume(self, name: str) -> None:
        self._change(name, lambda all_: dataclasses.replace(_existing(all_, name), paused=""))

    def remove(self, name: str) -> None:
        """Its dead letters stay, in their topic."""

        def removed(present: Mapping[str, Webhook]) -> None:
            _existing(present, name)

        self._change(name, removed)

    def redeliver(self, name: str) -> int:
        """All dead letters are sent again, by the gateway: how many there are."""
        webhook = self.one(name)
        with Fetcher(self._bootstrap, self._login, patience_s=self._patience_s) as fetcher:
            at, end = self._letters(fetcher, webhook)
        if end > at:
            self._change(
                name,
                lambda all_: dataclasses.replace(_existing(all_, name), redeliver_until=end),
            )
        return end - at

    def progress(self, names: Sequence[str] | None = None) -> list[Progress]:
        """Of all, or of these, by name."""
        webhooks = self.all()
        found = states.decoded(
            read_committed_latest(
                self._bootstrap, self._login, states.TOPIC, patience_s=self._patience_s
            )
        )
        wanted = sorted(webhooks) if names is None else names
        with Fetcher(self._bootstrap, self._login, patience_s=self._patience_s) as fetcher:
            return [
                self._progress(fetcher, _existing(webhooks, name), found.get(name, State()))
                for name in wanted
            ]

    def _progress(self, fetcher: Fetcher, webhook: Webhook, state: State) -> Progress:
        try:
            at, end = self._letters(fetcher, webhook)
            return Progress(webhook, state, self._backlog(fetcher, webhook), end - at)
        except RequestRefused as error:  # a topic was deleted
            state.last_error = state.last_error or str(error)
            return Progress(webhook, state, 0, 0)

    def _backlog(self, fetcher: Fetcher, webhook: Webhook) -> int:
        everything = [
            (topic, number)
            for topic in webhook.topics
            for number in range(fetcher.partitions(topic))
        ]
        starts = fetcher.offsets(everything, EARLIEST)
        ends = fetcher.offsets(everything, LATEST)
        with self._group(webhook) as group:
            at = group.committed(everything)
        return sum(
            max(0, ends[place] - max(at.get(place, 0), starts[place])) for place in everything
        )

    def _letters(self, fetcher: Fetcher, webhook: Webhook) -> tuple[int, int]:
        """Up to where dead letters were sent again, and where they end."""
        place = (webhook.dead_letter_topic, 0)
        end = fetcher.offsets([place], LATEST)[place]
        with self._group(webhook) as group:
            return min(group.committed([place]).get(place, 0), end), end

    def _group(self, webhook: Webhook) -> GroupOffsets:
        return GroupOffsets(
            self._bootstrap, self._login, webhook.group, patience_s=self._patience_s
        )

    def _change(self, name: str, change: definitions.Change) -> None:
        definitions.change(self._bootstrap, self._login, name, change)


def _existing(webhooks: Mapping[str, Webhook], name: str) -> Webhook:
    found = webhooks.get(name)
    if found is None:
        meant = nearest(name, list(webhooks))
        raise RequestRefused(
            f"there is no webhook {name[:100]}",
            hint=f"did you mean {meant}?" if meant else "`headwater webhook list` shows them",
        )
    return found


def _taken(name: str) -> RequestRefused:
    return RequestRefused(
        f"there is a webhook {name} already", hint=f"`headwater webhook remove {name}`"
    )


def _time(at_ms: int) -> str | None:
    if not at_ms:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since(at_ms: int) -> float:
    return max(0.0, time.time() - at_ms / 1000)
