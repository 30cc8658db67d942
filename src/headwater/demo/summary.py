"""The summary of a run of the demo, in numbers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from headwater.demo.watching import Store


def percentile(values: Iterable[float], share: float) -> float | None:
    """The value of that rank; None if there is none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def recent(stores: Iterable[Store], most: int = 300) -> list[float]:
    """The latest latencies of each."""
    return [
        latency_ms for store in stores for latency_ms in islice(reversed(store.latencies_ms), most)
    ]


@dataclass(slots=True)
class Summary:
    ready_s: float | None = None  # from the start of the demo
    seconds: float = 0.0  # that the load ran
    changes: int = 0  # captured, behind the first copy of the tables
    load: Mapping[str, int] = field(default_factory=dict)  # its own counts
    stores: Sequence[Store] = ()
    verdicts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by pipeline/write

    @property
    def is_verified(self) -> bool:
        """Every store was compared with what the log says, and is equal."""
        return bool(self.stores) and all(
            self.verdicts.get(_key(store), {}).get("is_equal") for store in self.stores
        )

    def as_json(self) -> dict[str, Any]:
        every = [latency_ms for store in self.stores for latency_ms in store.latencies_ms]
        return {
            "ready_s": _rounded(self.ready_s),
            "seconds": _rounded(self.seconds),
            **{f"{name.replace(' ', '_')}": count for name, count in self.load.items()},
            "changes": self.changes,
            "p50_ms": _rounded(percentile(every, 0.5)),
            "p99_ms": _rounded(percentile(every, 0.99)),
            "stores": [self._store(store) for store in self.stores],
            "verified": self.is_verified if self.verdicts else None,
        }

    def _store(self, store: Store) -> dict[str, Any]:
        verdict = self.verdicts.get(_key(store), {})
        return {
            "store": _key(store),
            "kind": store.kind,
            "rows": store.rows,
            "lag": store.lag,
            "p50_ms": _rounded(percentile(store.latencies_ms, 0.5)),
            "p99_ms": _rounded(percentile(store.latencies_ms, 0.99)),
            "is_equal": verdict.get("is_equal"),
            "different": verdict.get("different"),
        }


def _key(store: Store) -> str:
    return f"{store.pipeline}/{store.name}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
