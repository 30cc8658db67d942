"""Global transaction ids: which transactions a place in the log has behind it.

MySQL: a set, `uuid:1-5:7,uuid:1-3`. Each server numbers its transactions without gaps, but they may
be committed in another order.
MariaDB: one id for each domain, `0-1-5,1-2-7` (domain, server, number). Within a domain the log has
them in order, so the last one stands for all before it.
"""

from headwater.errors import CaptureError


class MySqlGtids:
    """A set of MySQL's ids that grows."""

    def __init__(self, text: str = "") -> None:
        self._intervals: dict[str, list[list[int]]] = {}
        self._texts: dict[str, str] = {}
        try:
            for part in text.replace("\n", "").replace(" ", "").split(","):
                if part:
                    uuid, *ranges = part.lower().split(":")
                    for span in ranges:
                        first, _, last = span.partition("-")
                        self._add(uuid, int(first), int(last or first))
        except ValueError:
            raise CaptureError(
                "a set of GTIDs cannot be read", detail=text[:200], hint="tagged GTIDs are unknown"
            ) from None

    def add(self, gtid: str) -> None:
        uuid, _, number = gtid.partition(":")
        self._add(uuid, int(number), int(number))

    def _add(self, uuid: str, first: int, last: int) -> None:
        intervals = self._intervals.setdefault(uuid, [])
        self._texts.pop(uuid, None)
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
        self._intervals[uuid] = merged

    def __contains__(self, gtid: str) -> bool:
        uuid, _, number = gtid.partition(":")
        n = int(number)
        return any(first <= n <= last for first, last in self._intervals.get(uuid, ()))

    def __str__(self) -> str:
        for uuid, intervals in self._intervals.items():
            if uuid not in self._texts:
                spans = (str(a) if a == b else f"{a}-{b}" for a, b in intervals)
                self._texts[uuid] = f"{uuid}:{':'.join(spans)}"
        return ",".join(self._texts[uuid] for uuid in sorted(self._intervals))

    def encoded(self) -> bytes:
        """As COM_BINLOG_DUMP_GTID has it; the end of an interval is exclusive there."""
        out = [len(self._intervals).to_bytes(8, "little")]
        for uuid, intervals in sorted(self._intervals.items()):
            out.append(bytes.fromhex(uuid.replace("-", "")))
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
