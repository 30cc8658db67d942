"""Every error that Headwater raises on purpose, as one tree.

    HeadwaterError                what happened + detail + hint
    ├── UsageError                the command line was used wrongly              (exit code 2)
    ├── ConfigError               a setting is wrong, unknown or unreadable      (exit code 2)
    │   └── MissingExtra          it asks for packages that are not installed
    ├── NotReady                  not yet, or not equal: asking again may help   (exit code 3)
    ├── BrokerUnreachable         no broker answers at that address
    ├── RequestRefused            the broker answered with an error code
    │   └── TopicRefused          one topic does not take records; others would
    ├── DataDirectoryInUse        another process holds the data directory
    ├── LogError                  the log on disk
    │   ├── StorageFailed         the disk refused a write or a sync
    │   ├── CorruptLog            bytes on disk are not what was written
    │   ├── OffsetOutOfRange      the offset is not (or no longer) in the log
    │   └── ArchiveUnavailable    the object store does not answer; asking again may help
    ├── CaptureError              a capture cannot go on, or a table of it cannot
    │   ├── SourceUnreachable     the database does not answer; asking again may help
    │   ├── SourceRefused         it does, but its settings or our rights stand in the way
    │   ├── TableRefused          one table stands in the way; the others can go on
    │   └── PositionLost          its log no longer goes back to where the capture stands
    ├── PipelineError             a pipeline cannot go on; the others do
    │   ├── DataLost              the log no longer goes back to where it stands
    │   ├── StoreDiverged         the store was not written by this pipeline's checkpoint
    │   └── StateLost             an operator's state is lost or damaged
    ├── SinkError                 a derived store does not take a batch
    │   ├── StoreUnreachable      it does not answer; asking again may help
    │   ├── StoreRefused          it does, but rights, tables or settings stand in the way
    │   └── RowRefused            one row does not fit
    ├── Fenced                    another process has taken over
    └── ProtocolError             bytes from a client
        ├── MalformedMessage      they are not a message; the connection ends
        ├── AuthenticationFailed  they do not prove who the client is; the connection ends
        └── ApiError              they are; a Kafka error code answers (protocol/error_codes.py)

An error has what happened (short, lower case), the detail (values that matter) and a hint (what
to do). The command line prints these lines; the traceback only with `-v`.
"""

from collections.abc import Mapping, Sequence
from typing import Any


class HeadwaterError(Exception):
    """What happened, in what detail, and what to do about it."""

    exit_code = 1

    def __init__(self, what: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}: {self.detail}" if self.detail else self.what


class UsageError(HeadwaterError):
    """The command line was used wrongly."""

    exit_code = 2


class ConfigError(HeadwaterError):
    """A setting is wrong, unknown or unreadable."""

    exit_code = 2


class MissingExtra(ConfigError):
    """Something needs optional packages that are not installed. The hint is the pip command."""

    def __init__(self, purpose: str, extras: Sequence[str], modules: Sequence[str]) -> None:
        super().__init__(
            f"{purpose} needs packages that are not installed",
            detail=f"missing: {', '.join(dict.fromkeys(modules))}",
            hint=f"pip install 'headwater[{','.join(extras)}]'",
        )
        self.extras = (*extras,)


class NotReady(HeadwaterError):
    """Not yet, or not equal."""

    exit_code = 3


class BrokerUnreachable(HeadwaterError):
    """No broker answers at that address."""


class RequestRefused(HeadwaterError):
    """The broker answered a request with an error."""


class TopicRefused(RequestRefused):
    """The broker does not take records for one topic; it would take those for others."""

    def __init__(self, topic: str, what: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(what, detail=detail, hint=hint)
        self.topic = topic


class DataDirectoryInUse(HeadwaterError):
    """Another process holds the data directory."""


class LogError(HeadwaterError):
    """Something about the log on disk."""


class StorageFailed(LogError):
    """The disk refused a write or a sync; nothing of it was acknowledged."""


class CorruptLog(LogError):
    """Bytes on disk are not what was written."""


class OffsetOutOfRange(LogError):
    """The offset is not, or no longer, in the log."""


class ArchiveUnavailable(LogError):
    """The object store refuses or does not answer; asking again may help."""


class CaptureError(HeadwaterError):
    """A capture, or one table of it, cannot go on."""


class SourceUnreachable(CaptureError):
    """The database does not answer; asking again may help."""


class SourceRefused(CaptureError):
    """The database's settings or our rights there stand in the way; the hint has the SQL."""


class TableRefused(CaptureError):
    """Something about one table stands in the way; the others can go on."""


class PositionLost(CaptureError):
    """The database's log no longer goes back to where the capture stands."""


class PipelineError(HeadwaterError):
    """A pipeline cannot go on, or cannot begin; the others can."""


class DataLost(PipelineError):
    """Records that were to be read are not, or no longer, in the log: retention has passed them, or
    the log was truncated or created again. Offsets from `first` to `end` (exclusive) are there.
    """

    def __init__(self, topic: str, partition: int, wanted: int, first: int, end: int) -> None:
        is_passed = wanted < first
        super().__init__(
            f"records of {topic}-{partition} are lost",
            detail=f"offset {wanted} was to be read, "
            + (f"the first that is there is {first}" if is_passed else f"the log ends at {end}"),
            hint="retention has deleted them before they were read"
            if is_passed
            else "the topic was deleted and created again, or its log was cut",
        )
        self.topic = topic
        self.partition = partition
        self.wanted = wanted
        self.first = first
        self.end = end


class StoreDiverged(PipelineError):
    """What a store says of its position does not belong to the pipeline's checkpoint."""


class StateLost(PipelineError):
    """An operator's state, or a store's batch, is lost, damaged, or another pipeline's: only the
    log can restore it.
    """


class SinkError(HeadwaterError):
    """A derived store does not take a batch. Nothing of the batch is in it."""


class StoreUnreachable(SinkError):
    """The store does not answer; asking again may help."""


class StoreRefused(SinkError):
    """The store's rights, tables or settings stand in the way; asking again does not help."""


class RowRefused(SinkError):
    """The store does not take one row of the batch."""

    def __init__(
        self,
        what: str,
        *,
        row: Mapping[str, Any],
        column: str = "",
        detail: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(what, detail=detail, hint=hint)
        self.row = row
        self.column = column


class Fenced(HeadwaterError):
    """Another process has taken over; this one must not write any more."""


class ProtocolError(HeadwaterError):
    """Something about bytes that a client sent."""


class MalformedMessage(ProtocolError):
    """The bytes are no message of the protocol. The connection they came on is closed."""


class AuthenticationFailed(ProtocolError):
    """A client does not prove who it is. The message is for the log; the client gets no reason."""
