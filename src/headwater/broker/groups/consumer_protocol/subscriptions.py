"""Subscriptions: names and patterns of members, resolved to the topics that exist."""

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from headwater.broker.groups.consumer_protocol.member import Subscription
from headwater.broker.groups.consumer_protocol.topic_regex import compile_topic_regex
from headwater.broker.groups.ports import Topics
from headwater.protocol.error_codes import ApiError

log = logging.getLogger(__name__)

# Whether a client may see a topic, by its name.
Sees = Callable[[str], bool]


class Topic(NamedTuple):
    """A subscribed topic that exists."""

    name: str
    topic_id: UUID
    partition_count: int


NO_LIMITS: Mapping[str, Sees] = MappingProxyType({})


class Subscriptions:
    """Resolves names and patterns against the topics of this moment.

    A pattern never matches an internal topic (`__…`): a member that wants one names it.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._compile: Callable[[str], Callable[[str], bool]] = lru_cache(maxsize=256)(
            compile_topic_regex
        )
        self._verify: Callable[[str], None] = lru_cache(maxsize=256)(self._try_all)
        self._warn: Callable[[str, str], None] = lru_cache(maxsize=256)(_warn)  # not each time

    def matches(self, pattern: str, topic: str) -> bool:
        """A stored pattern that is over a limit matches nothing more: the other members of its
        group must not fail for it.
        """
        if topic.startswith("__"):
            return False
        try:
            return self._compile(pattern)(topic)
        except ApiError as error:
            self._warn(pattern, str(error))
            return False

    def verify(self, pattern: str) -> None:
        """Raises ApiError (INVALID_REGULAR_EXPRESSION) for what is no pattern, or takes too much
        to match with the topics that there are.
        """
        self._verify(pattern)

    def _try_all(self, pattern: str) -> None:
        matches = self._compile(pattern)
        for name in self._topics.names():
            matches(name)

    def resolve(
        self, subscriptions: Iterable[Subscription], sees: Mapping[str, Sees] = NO_LIMITS
    ) -> list[list[Topic]]:
        """The topics of each subscription; every pattern and name is looked up only once.

        `sees`, by pattern: a pattern matches no topic that its subscribers may not see.
        """
        by_name: dict[str, Topic | None] = {}
        by_pattern: dict[str, list[str]] = {}

        def topic(name: str) -> Topic | None:
            if name not in by_name:
                topic_id, count = self._topics.topic_id(name), self._topics.partition_count(name)
                missing = topic_id is None or count is None
                by_name[name] = None if missing else Topic(name, topic_id, count)  # type: ignore[arg-type]
            return by_name[name]

        def matching(pattern: str) -> list[str]:
            if pattern not in by_pattern:
                may_see = sees.get(pattern)
                by_pattern[pattern] = [
                    name
                    for name in self._topics.names()
                    if self.matches(pattern, name) and (may_see is None or may_see(name))
                ]
            return by_pattern[pattern]

        resolved = []
        for subscription in subscriptions:
            names = set(subscription.topic_names)
            if subscription.topic_regex:
                names.update(matching(subscription.topic_regex))
            resolved.append([found for name in sorted(names) if (found := topic(name))])
        return resolved


def _warn(pattern: str, reason: str) -> None:
    log.warning("a subscription's pattern %.200r matches no further topics: %s", pattern, reason)


def topics_hash(topics: Iterable[Topic]) -> int:
    """Changes when a subscribed topic comes, goes or grows; 0 when there is none.

    Kafka hashes the same with another function; the value means nothing outside its broker.
    """
    distinct = sorted(set(topics))
    if not distinct:
        return 0
    digest = hashlib.blake2b(repr(distinct).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
