"""The index of stored queries: which of them a document can match at all.

A query is listed under keys that every matching document must have: of a conjunction the rarest
part, of a disjunction each part, of a phrase its rarest pair of words (conditions.py). A document
meets the queries that are listed under what it has, and each of these is then decided exactly.
So the cost of a document goes by its words and candidates, and not by the number of queries. Where
a query requires a second word, it is a candidate only for documents with both.
Queries without keys (only ranges or places) are decided for every document; they are counted.

Which part is the rarest goes by how many documents of a sample had its key (frequencies.py). A
wrong guess costs time, and never changes a result.

A query changes over time, and documents of a slow partition may need its earlier version. The index
therefore has versions, each valid from a time in the log on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.errors import SearchRefused
from headwater.pipelines.operators.joins.tables.keyed_table import Truncation
from headwater.pipelines.search.conditions import (
    PAIR,
    PREFIX,
    VALUE,
    WORD,
    Condition,
    Key,
    Test,
    columns_of,
    required_words,
)
from headwater.pipelines.search.documents import Document, Path
from headwater.pipelines.search.frequencies import Frequencies
from headwater.pipelines.search.query_parser import parse_query

_Queries = dict[int, "Version"]  # by their numbers, in order


class _Listed:
    """The queries under one key: those that need a second word of the same language, by that word,
    and the others.
    """

    __slots__ = ("others", "seconds")

    def __init__(self) -> None:
        self.others: _Queries = {}
        self.seconds: dict[str, _Queries] = {}

    def add(self, version: "Version") -> None:
        if version.second is None:
            self.others[version.number] = version
        else:
            self.seconds.setdefault(version.second, {})[version.number] = version

    def remove(self, version: "Version") -> None:
        if version.second is None:
            self.others.pop(version.number, None)
        elif version.second in self.seconds:
            of_second = self.seconds[version.second]
            of_second.pop(version.number, None)
            if not of_second:
                del self.seconds[version.second]

    def is_empty(self) -> bool:
        return not self.others and not self.seconds


@dataclass(slots=True, eq=False)
class Version:
    """A query as it was from `valid_us` on."""

    id: Any
    row: dict[str, Any]  # owner, target, limit, …
    valid_us: int
    offset: int
    origin: int
    is_deleted: bool
    condition: Condition | None = None  # None: deleted, or refused
    test: Test | None = None
    keys: tuple[Key, ...] = ()  # that it is listed under
    second: str | None = None  # the next rare word that it requires
    number: int = -1

    @property
    def order(self) -> tuple[int, int, int]:
        return self.valid_us, self.offset, self.origin


class QueryIndex:
    """The queries of one bucket."""

    def __init__(
        self, texts: Sequence[str], columns: Sequence[str], language: str | None = None
    ) -> None:
        """`language`: of queries that name none."""
        self._texts = tuple(texts)
        self._columns = columns
        self._language = language
        self._versions: dict[Any, list[Version]] = {}  # by id, in their order
        self._listed: dict[str, dict[str | Path, dict[str, _Listed]]] = {
            WORD: {},
            PAIR: {},
            PREFIX: {},
            VALUE: {},
        }
        self._unindexed: _Queries = {}
        self._prefix_lengths: dict[int, int] = {}
        self._truncations: list[Truncation] = []
        self._number = 0
        self._replaced: dict[Any, None] = {}  # ids with versions that may be removed one day
        self._read: dict[str, None] = {}
        self.frequencies = Frequencies()
        self.sampled = 0
        self._counts: dict[str, int] | None = None

    def add(self, version: Version) -> None:
        """Versions of an id may come in any order."""
        self._counts = None
        if not version.is_deleted:
            self._compile(version)
        version.number = self._number
        self._number += 1
        versions = self._versions.setdefault(version.id, [])
        versions.append(version)
        if len(versions) > 1:
            versions.sort(key=lambda one: one.order)
        if len(versions) > 1 or version.is_deleted:
            self._replaced[version.id] = None
        self._list(version)

    def truncate(self, truncation: Truncation) -> None:
        if truncation not in self._truncations:
            self._truncations.append(truncation)

    def remove_superseded(self, oldest_us: int) -> None:
        """Versions that no document from `oldest_us` on can need."""
        for key in list(self._replaced):
            versions = self._versions[key]
            current = self._at(versions, oldest_us)
            first = 0 if current is None else versions.index(current)
            if current is not None and current.is_deleted:
                first += 1
            for version in versions[:first]:
                self._unlist(version)
            del versions[:first]
            if not versions:
                del self._versions[key]
            if not versions or (len(versions) == 1 and not versions[0].is_deleted):
                del self._replaced[key]

    def set_frequencies(self, frequencies: Frequencies, sampled: int) -> None:
        """Lists all queries again under the keys that are now the rarest. `sampled`: how many
        documents there were at the last sample.
        """
        self.frequencies, self.sampled = frequencies, sampled
        for version in self.versions():
            if version.condition is not None:
                keys, second = self._place(version.condition)
                if (keys, second) != (version.keys, version.second):
                    self._unlist(version)
                    self._list(version)

    def versions(self) -> Iterator[Version]:
        for versions in self._versions.values():
            yield from versions

    @property
    def languages(self) -> list[str]:
        return sorted({str(language) for kind in (WORD, PAIR) for language in self._listed[kind]})

    @property
    def paths(self) -> list[Path]:
        return sorted(path for path in self._listed[VALUE] if isinstance(path, tuple))

    @property
    def columns(self) -> list[str]:
        """Of documents that the queries read, besides those of the text fields."""
        return list(self._read)

    def counts(self) -> dict[str, int]:
        """Queries; of them those decided for every document, and those that are refused."""
        if self._counts is None:
            last = [versions[-1] for versions in self._versions.values()]
            stored = [version for version in last if not version.is_deleted]
            self._counts = {
                "queries": len(stored),
                "unindexed_queries": sum(1 for one in stored if one.number in self._unindexed),
                "refused_queries": sum(1 for one in stored if one.test is None),
            }
        return self._counts

    def candidates(self, document: Document) -> list[Version]:
        """All versions that the document can match, each once."""
        found: _Queries = {}
        for language, words in self._listed[WORD].items():
            stems = document.stems(str(language))
            for stem in stems & words.keys():
                listed = words[stem]
                if listed.others:
                    found |= listed.others
                if listed.seconds:
                    for second in stems & listed.seconds.keys():
                        found |= listed.seconds[second]
        for language, pairs in self._listed[PAIR].items():
            for pair in document.pairs(str(language)) & pairs.keys():
                found |= pairs[pair].others
        for path, values in self._listed[VALUE].items():
            for text in document.canonical_values(path) & values.keys():  # type: ignore[arg-type]
                found |= values[text].others
        if self._prefix_lengths:
            prefixes = self._listed[PREFIX][""]
            for length in self._prefix_lengths:
                beginnings = {word[:length] for word in document.stems("")}
                for beginning in beginnings & prefixes.keys():
                    found |= prefixes[beginning].others
        return [*found.values(), *self._unindexed.values()]

    def matches(self, document: Document, at_us: int) -> tuple[list[Version], int]:
        """The queries that the document matches, as they were at that time, by their ids; and how
        many candidates were decided for it.
        """
        candidates = self.candidates(document)
        found = [
            version
            for version in candidates
            if version.test is not None
            and version.test(document)
            and version.valid_us <= at_us
            and self._is_current(version, at_us)
        ]
        if len(found) > 1:
            found.sort(key=lambda version: str(version.id))
        return found, len(candidates)

    def _is_current(self, version: Version, at_us: int) -> bool:
        versions = self._versions[version.id]
        if len(versions) == 1 and not self._truncations:
            return True
        return self._at(versions, at_us) is version

    def _at(self, versions: Sequence[Version], at_us: int) -> Version | None:
        """The latest that was valid then, as `KeyedTable.find` has it."""
        for version in reversed(versions):
            if version.valid_us <= at_us and not self._is_truncated(version, at_us):
                return version
        return None

    def _is_truncated(self, version: Version, at_us: int) -> bool:
        return any(
            truncation.valid_us <= at_us
            and (
                version.offset < truncation.offset
                if version.origin == truncation.origin
                else version.valid_us < truncation.valid_us
            )
            for truncation in self._truncations
        )

    def _compile(self, version: Version) -> None:
        try:
            version.condition = parse_query(
                version.row.get("query") or "",
                self._texts,
                language=version.row.get("language") or self._language,
                columns=self._columns,
            )
            version.test = version.condition.test()
            self._read |= dict.fromkeys(columns_of(version.condition))
        except SearchRefused:  # counted; whoever stored it sees why (stored_searches.py)
            version.condition = version.test = None

    def _list(self, version: Version) -> None:
        if version.condition is None:
            return
        version.keys, version.second = self._place(version.condition)
        if not version.keys:
            self._unindexed[version.number] = version
        for kind, group, text in version.keys:
            of_group = self._listed[kind].setdefault(group, {})
            listed = of_group.get(text)
            if listed is None:
                listed = of_group[text] = _Listed()
                if kind == PREFIX:
                    length = len(text)
                    self._prefix_lengths[length] = self._prefix_lengths.get(length, 0) + 1
            listed.add(version)

    def _place(self, condition: Condition) -> tuple[tuple[Key, ...], str | None]:
        """The keys to list it under; with a single word, the rarest other one that it requires."""
        cover = condition.cover(self.frequencies.of)
        keys = () if cover is None else cover.keys
        if len(keys) != 1 or keys[0].kind != WORD:
            return keys, None
        others = [
            (self.frequencies.of(key), key.text)
            for key in required_words(condition)
            if key.group == keys[0].group and key.text != keys[0].text
        ]
        return keys, min(others)[1] if others else None

    def _unlist(self, version: Version) -> None:
        self._unindexed.pop(version.number, None)
        for kind, group, text in version.keys:
            of_group = self._listed[kind][group]
            of_group[text].remove(version)
            if of_group[text].is_empty():
                del of_group[text]
                if kind == PREFIX:
                    self._forget_length(len(text))
            if not of_group and kind != PREFIX:
                del self._listed[kind][group]
        version.keys, version.second = (), None

    def _forget_length(self, length: int) -> None:
        self._prefix_lengths[length] -= 1
        if not self._prefix_lengths[length]:
            del self._prefix_lengths[length]
