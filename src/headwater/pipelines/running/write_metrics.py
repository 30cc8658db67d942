"""Metrics of one write: of its last batch, and of its operators after it."""

import contextlib
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from headwater.errors import PipelineError
from headwater.pipelines.engine.local_state import LOCAL, LocalState, is_local, read_record
from headwater.pipelines.flow import Write
from headwater.pipelines.operators.state.state_metrics import (
    OperatorMetrics,
    metrics_in,
    metrics_of_all,
)
from headwater.pipelines.operators.state.state_store import StateDirectory
from headwater.pipelines.running.late_alert import LateAlert
from headwater.pipelines.settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)


class WriteMetrics:
    """The metrics of one run. Batches in the driver leave those of operators in the record of
    their state (`state`), batches of a query in files (`directory`).
    """

    def __init__(
        self, settings: PipelineSettings, write: Write, directory: StateDirectory, state: LocalState
    ) -> None:
        self._pipeline = settings.name
        self._write = write
        self._directory = directory
        self._state = state
        self._alerts = {
            operator.name: LateAlert(settings.late_alert) for operator in write.operators
        }
        self._operators: dict[str, OperatorMetrics] = {}  # after the last batch
        self._record = b""  # that `_operators` are of
        self._last: StreamingQueryProgress | None = None  # of a query's batch that had records

    def look(self, query: "StreamingQuery | None") -> None:
        """Takes over what the query, if there is one, reports of its last batch."""
        last = query.lastProgress if query is not None else None
        if last is not None and last["numInputRows"]:
            self._last = last

    def of_query(self) -> dict[str, Any]:
        """Of the last batch of a query that had records; {} before the first one."""
        last = self._last
        if last is None:
            return {}
        operators = last["stateOperators"]
        return {
            "batch": last["batchId"],
            "rows": last["numInputRows"],
            "rows_per_s": last["processedRowsPerSecond"],
            "input_rows_per_s": last["inputRowsPerSecond"],
            "batch_ms": last["batchDuration"],
            "at": last["timestamp"],
            "state_rows": sum(operator["numRowsTotal"] for operator in operators),
            "state_bytes": sum(operator["memoryUsedBytes"] for operator in operators),
        }

    def read(self, batch: int) -> None:
        """Those of operators after this batch, from the disk."""
        with contextlib.suppress(PipelineError):  # the run itself reports lost state
            if self._write.operators and is_local(self._directory, batch):
                self._operators = _in_record(read_record(self._directory, batch))
            else:
                self._operators = metrics_of_all(self._directory, self._write.operators, batch)

    def begin(self) -> None:
        """Rows from now on count for the alert: also those of batches that are applied
        before the metrics are first asked for.
        """
        for name, alert in self._alerts.items():
            state = self._operators.get(name)
            alert.saw(time.monotonic(), state.counters if state is not None else {})

    def of_operators(self, *, is_query: bool) -> dict[str, Any]:
        """By operator, after the last applied batch."""
        record = self._state.record
        if not is_query and record not in (b"", self._record):
            self._record = record
            # A record for the tasks of a query has no metrics: its files have them.
            if metrics_found := _in_record(orjson.loads(record)):
                self._operators = metrics_found
        metrics = {}
        for name, state in self._operators.items():
            alert = self._alerts[name]
            was_on = alert.is_on
            alert.saw(time.monotonic(), state.counters)
            if alert.is_on and not was_on:
                _log.warning(
                    "%s: %.2g %% of the rows of %s are late, or have no usable time",
                    self._pipeline,
                    100 * (alert.share or 0),
                    name,
                )
            lateness = {"late_share": alert.share, "late_alert": alert.is_on}
            metrics[name] = {**state.as_json(), **lateness}
        return metrics


def _in_record(record: Mapping[str, Any]) -> dict[str, OperatorMetrics]:
    return {name: metrics_in(states) for name, states in record.get(LOCAL, {}).items()}
