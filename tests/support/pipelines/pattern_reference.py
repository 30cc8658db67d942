"""Row pattern matching by definition: all ways through a pattern, in the order of preferment.

It shares the tree of the pattern with the operator, and nothing else. A way through the pattern is
a list of (variable, is excluded), one for each row. Everything is searched again at each moment, a
row or a deadline, so that what becomes final at which moment follows from the definition, too.
"""

from dataclasses import dataclass, field

from headwater.pipelines.operators.patterns.language.pattern_tree import (
    Alternation,
    Excluded,
    PartitionStart,
    Repeated,
    Sequence,
    Variable,
)


class Undecided(Exception):
    """A preferred way waits for a row that has not come."""


@dataclass
class Reference:
    """Of one key. `conditions`: by variable, a function of (rows, first row, variables so far)."""

    tree: object
    conditions: dict
    within: int | None = None
    skip: str = "past last row"
    target: frozenset = frozenset()
    gives_timed_out: bool = False
    gives_unmatched: bool = False
    _expired: list | None = field(default=None, init=False)

    def results(self, rows, until):
        """(kind, first row, way, number, time) of all that is decided before `until`."""
        found = []
        for known, now, time in self._moments(rows, until):
            decided = self._decided(rows[:known], now)
            assert [one[:4] for one in found] == decided[: len(found)], "a result has changed"
            found += [(*one, time) for one in decided[len(found) :]]
        return found

    def _moments(self, rows, until):
        """How many rows there are, before what time deadlines are due, and what time it is."""
        moments = [(row["time"], 0, number, number + 1) for number, row in enumerate(rows)]
        if self.within is not None:
            for deadline in {row["time"] + self.within for row in rows}:
                known = sum(row["time"] <= deadline for row in rows)
                moments.append((deadline, 1, 0, known))
        for time, is_deadline, _, known in sorted(moments):
            if time < until:
                yield known, time + is_deadline, time

    def _decided(self, rows, now):
        found, start, number, covered = [], 0, 0, 0
        while start < len(rows):
            limit = None if self.within is None else rows[start]["time"] + self.within
            self._expired = None
            try:
                way = next(self._ways(self.tree, [], rows, start, limit, now), None)
            except Undecided:
                break
            if way is None:
                if self._expired and self.gives_timed_out:
                    number += 1
                    found.append(("timed out", start, self._expired, number))
                if self.gives_unmatched and start >= covered:
                    found.append(("unmatched", start, [], 0))
                start += 1
                continue
            number += 1
            found.append(("matched", start, way, number))
            covered = max(covered, start + max(len(way), 1))
            start = self._after(start, way)
        return found

    def _after(self, start, way):
        if not way or self.skip == "to next row":
            return start + 1
        if self.skip == "past last row":
            return start + len(way)
        places = [at for at, (variable, _) in enumerate(way) if variable in self.target]
        if not places:
            return start + 1
        place = places[0] if self.skip == "to first" else places[-1]
        return start + max(place, 1)  # at the first row again, the same match would be found

    def _ways(self, tree, way, rows, start, limit, now, is_excluded=False):
        more = rows, start, limit, now, is_excluded
        if isinstance(tree, Variable):
            if self._takes(tree.name, way, rows, start, limit, now):
                yield [*way, (tree.name, is_excluded)]
        elif isinstance(tree, Sequence):
            if not tree.parts:
                yield way
                return
            for one in self._ways(tree.parts[0], way, *more):
                yield from self._ways(Sequence(tree.parts[1:]), one, *more)
        elif isinstance(tree, Alternation):
            for part in tree.parts:
                yield from self._ways(part, way, *more)
        elif isinstance(tree, Excluded):
            yield from self._ways(tree.part, way, rows, start, limit, now, True)
        elif isinstance(tree, PartitionStart):
            if start == 0 and not way:
                yield way
        else:
            assert isinstance(tree, Repeated)
            yield from self._repeated(tree, 0, way, more)

    def _repeated(self, tree, count, way, more):
        if count < tree.least:
            for one in self._ways(tree.part, way, *more):
                yield from self._repeated(tree, count + 1, one, more)
            return
        if not tree.is_greedy:
            yield way
        if tree.most is None or count < tree.most:
            for one in self._ways(tree.part, way, *more):
                if len(one) > len(way):
                    yield from self._repeated(tree, count + 1, one, more)
        if tree.is_greedy:
            yield way

    def _takes(self, variable, way, rows, start, limit, now):
        at = start + len(way)
        is_over = limit is not None and (
            rows[at]["time"] > limit if at < len(rows) else now > limit
        )
        if is_over:
            if self._expired is None:
                self._expired = way
            return False
        if at >= len(rows):
            raise Undecided
        condition = self.conditions.get(variable)
        if condition is None:
            return True
        return condition(rows, start, [name for name, _ in way] + [variable]) is True
