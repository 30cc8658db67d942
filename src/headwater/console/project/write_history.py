"""Recent samples of each write of a pipeline, for rates and the lag in seconds.

The console holds a bounded number of samples in memory.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from headwater.inspect.pipelines import PipelineState, WriteState
from headwater.pipelines.views.plan_steps import IN, OUT

_SAMPLES: Final = 360
_WRITES: Final = 200
_RATE_OVER_S: Final = 30.0
_AT_LEAST_S: Final = 1.0  # between two samples
_EVENTS: Final = 50  # batches and errors of each write
_COUNTED: Final = 32  # samples of operators' rows: enough for the last half minute


Counters = dict[str, dict[str, int]]  # by operator


@dataclass(frozen=True, slots=True)
class Sample:
    """`read` and `end` count offsets of all partitions that the write reads."""

    at: float
    read: int | None
    end: int

    @property
    def lag(self) -> int | None:
        return None if self.read is None else max(0, self.end - self.read)


class WriteHistory:
    """By <pipeline>/<sink>/<table>."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[Sample]] = {}
        self._rows: dict[str, deque[tuple[float, Counters]]] = {}
        self._events: dict[str, deque[dict[str, Any]]] = {}

    def add(self, pipelines: Iterable[PipelineState], at: float) -> None:
        for pipeline in pipelines:
            for write in pipeline.writes:
                name = f"{pipeline.name}/{write.name}"
                if name not in self._samples and len(self._samples) >= _WRITES:
                    continue
                self._note(name, write, at)
                samples = self._samples.setdefault(name, deque(maxlen=_SAMPLES))
                if not samples or at - samples[-1].at >= _AT_LEAST_S:
                    samples.append(_sample(write, at))
                    rows = self._rows.setdefault(name, deque(maxlen=_COUNTED))
                    rows.append((at, _counters(write) if pipeline.is_running else {}))

    def events(self, name: str) -> list[dict[str, Any]]:
        """The last batches and errors that were seen, the newest first."""
        return list(reversed(self._events.get(name, ())))

    def _note(self, name: str, write: WriteState, at: float) -> None:
        """A batch, or an error, that is another than the last one."""
        events = self._events.setdefault(name, deque(maxlen=_EVENTS))
        reported = write.reported
        error = reported.get("error") or write.error
        if error and (not events or events[-1].get("error") != error):
            state = reported.get("state") if reported.get("error") else "the store cannot be read"
            events.append({"at": at, "error": error, "state": state})
        batch = reported.get("batch")
        seen = next((event["batch"] for event in reversed(events) if "batch" in event), None)
        if batch is not None and batch != seen and "batch_ms" in reported:
            figures = ("batch", "rows", "batch_ms", "store_ms", "rows_per_s")
            events.append({"at": at, **{figure: reported.get(figure) for figure in figures}})

    def lag_s(self, name: str) -> float | None:
        """How long ago the log ended where the store is now; None if it cannot be determined.
        If it was before the first sample, the age of that sample.
        """
        samples = self._samples.get(name)
        if not samples or samples[-1].read is None:
            return None
        now = samples[-1]
        if not now.lag:
            return 0.0
        passed = next(sample for sample in samples if sample.end > (now.read or 0))
        return now.at - passed.at

    def lags_s(self) -> dict[str, float]:
        return {name: lag for name in self._samples if (lag := self.lag_s(name)) is not None}

    def read_per_s(self) -> dict[str, float]:
        """Records that each write took in a second, over the last half minute."""
        rates = {}
        for name, samples in self._samples.items():
            recent = [
                sample
                for sample in samples
                if sample.read is not None and samples[-1].at - sample.at <= _RATE_OVER_S
            ]
            if len(recent) >= 2:
                first, last = recent[0], recent[-1]
                read = (last.read or 0) - (first.read or 0)
                if read >= 0:  # else it was rebuilt
                    rates[name] = read / (last.at - first.at)
        return rates

    def operator_rows(self, name: str) -> tuple[Counters, Counters, float]:
        """What the operators of a write have counted half a minute ago (or since it is sampled),
        what now, and how many seconds are in between; 0 if there is one sample.
        """
        samples = [one for one in self._rows.get(name, ()) if one[1]]
        if not samples:
            return {}, {}, 0.0
        last_at, last = samples[-1]
        first_at, first = next(one for one in samples if last_at - one[0] <= _RATE_OVER_S)
        return first, last, last_at - first_at


def _counters(write: WriteState) -> Counters:
    return {
        name: {counter: int(metrics[counter]) for counter in (IN, OUT) if counter in metrics}
        for name, metrics in write.operators.items()
    }


def _sample(write: WriteState, at: float) -> Sample:
    end = sum(sum(ends.values()) for ends in write.ends.values())
    lag = write.lag
    return Sample(at, None if lag is None else end - lag, end)
