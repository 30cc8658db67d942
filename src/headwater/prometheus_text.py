"""Numbers in Prometheus' text format."""

import math
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Sample: TypeAlias = tuple[Mapping[str, str], float]  # labels, value


def family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Iterator[str]:
    """The lines of one metric. `kind`: counter or gauge."""
    yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escape(label)}"' for key, label in labels.items())
        shown = "+Inf" if math.isinf(value) else f"{value:.10g}" if value % 1 else str(int(value))
        yield f"{name}{{{inside}}} {shown}\n" if inside else f"{name} {shown}\n"


def histogram(
    name: str,
    text: str,
    bounds: Sequence[float],
    samples: Iterable[tuple[Mapping[str, str], Sequence[int], float]],
) -> Iterator[str]:
    """The lines of one histogram: labels, a count for each bound and one for what is above, sum."""
    yield f"# HELP {name} {text}\n# TYPE {name} histogram\n"
    for labels, counts, total in samples:
        inside = ",".join(f'{key}="{_escape(label)}"' for key, label in labels.items())
        below = 0
        for bound, count in zip((*bounds, math.inf), counts, strict=True):
            below += count
            shown = "+Inf" if math.isinf(bound) else f"{bound:g}"
            yield f'{name}_bucket{{{inside}{"," if inside else ""}le="{shown}"}} {below}\n'
        ends = f"{{{inside}}}" if inside else ""
        yield f"{name}_sum{ends} {total:.10g}\n{name}_count{ends} {below}\n"


def memory_peak_bytes() -> int:
    """The largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
