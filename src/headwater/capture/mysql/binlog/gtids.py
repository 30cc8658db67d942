"""GTID sets of MySQL and MariaDB: which transactions a position in the log has behind it.

MySQL: a set, `uuid:1-5:7,uuid:1-3`. Each server numbers its transactions without gaps, but they may
be committed in another order. Since 8.3 a transaction may carry a tag, and each tag has numbers of
its own: `uuid:1-5:7:blue:1-2:red:4` (the numbers behind a tag are that tag's).
MariaDB: one id for each domain, `0-1-5,1-2-7` (domain, server, number). Within a domain the log has
them in order, so the last one stands for all before it.
"""

import re
from typing import Final

from headwater.errors import CaptureError

_TAG: Final = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_WITH_TAGS: Final = 1 << 56 | 1  # marks the encoding of a set in which each source has a tag


class MySqlGtids:
    """A set of MySQL's ids that grows."""

    def __init__(self, text: str = "") -> None:
        self._intervals: dict[str, list[list[int]]] = {}  # by source: `uuid` or `uuid:tag`
        self._texts: dict[str, str] = {}
        try:
            for part in text.replace("\n", "").replace(" ", "").split(","):
                if part:
                    uuid, *spans = part.lower().split(":")
                    source = uuid
                    for span in spans:
                        if _TAG.fullmatch(span):
                            source = f"{uuid}:{span}"
                            continue
                        first, _, last = span.partition("-")
                        self._add(source, int(first), int(last or first))
        except ValueError:
            raise CaptureError("a set of GTIDs cannot be read", detail=text[:200]) from None

    def add(self, gtid: str) -> None:
        source, _, number = gtid.rpartition(":")
        self._add(source, int(number), int(number))

    def _add(self, source: str, first: int, last: int) -> None:
        intervals = self._intervals.setdefault(source, [])
        self._texts.pop(source, None)
        if intervals and intervals[-1][1] + 1 == first:  # the usual case: the next one
            intervals[-1][1] = last
            return
        intervals.append([first, last])
        intervals.sort()
        merged = [intervals[0]]
        for span in intervals[1:]:
            if span[0] <= merged[-1][1] + 1:
                merged[-1][1] = max(merged[-1][1], span[1])
            else:
                merged.append(span)
        self._intervals[source] = merged

    def __contains__(self, gtid: str) -> bool:
        source, _, number = gtid.rpartition(":")
        n = int(number)
        return any(first <= n <= last for first, last in self._intervals.get(source, ()))

    def __str__(self) -> str:
        """As the server writes it: the tags of a uuid behind its numbers without a tag."""
        for source, intervals in self._intervals.items():
            if source not in self._texts:
                spans = (str(a) if a == b else f"{a}-{b}" for a, b in intervals)
                self._texts[source] = f"{source}:{':'.join(spans)}"
        out: list[str] = []
        for source in sorted(self._intervals):  # `uuid` comes in front of its `uuid:tag`
            text = self._texts[source]
            uuid = source.partition(":")[0]
            if out and out[-1].startswith(uuid):
                out[-1] += text[len(uuid) :]
            else:
                out.append(text)
        return ",".join(out)

    def encoded(self) -> bytes:
        """As COM_BINLOG_DUMP_GTID has it; the end of an interval is exclusive there. Servers older
        than 8.3 read sets without tags only, so the other form is used for sets that need it.
        """
        has_tags = any(":" in source for source in self._intervals)
        count = len(self._intervals)
        out = [(count << 8 | _WITH_TAGS if has_tags else count).to_bytes(8, "little")]
        for source, intervals in sorted(self._intervals.items()):
            uuid, _, tag = source.partition(":")
            out.append(bytes.fromhex(uuid.replace("-", "")))
            if has_tags:  # its length as a number of variable length, here always of one byte
                out.append(bytes([len(tag) << 1]) + tag.encode())
            out.append(len(intervals).to_bytes(8, "little"))
            out += [a.to_bytes(8, "little") + (b + 1).to_bytes(8, "little") for a, b in intervals]
        return b"".join(out)


class MariaDbGtids:
    """The last id of each domain."""

    def __init__(self, text: str = "") -> None:
        self._last: dict[str, str] = {}
        for part in text.replace(" ", "").split(","):
            if part:
                self.add(part)

    def add(self, gtid: str) -> None:
        domain, separator, rest = gtid.partition("-")
        if not separator or not rest.partition("-")[2].isdigit():
            raise CaptureError("a GTID cannot be read", detail=gtid[:200])
        self._last[domain] = gtid

    def __contains__(self, gtid: str) -> bool:
        domain, _, _ = gtid.partition("-")
        last = self._last.get(domain)
        return last is not None and int(gtid.rpartition("-")[2]) <= int(last.rpartition("-")[2])

    def __str__(self) -> str:
        if len(self._last) == 1:  # nearly always
            return next(iter(self._last.values()))
        return ",".join(self._last[domain] for domain in sorted(self._last, key=int))
