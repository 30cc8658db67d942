"""Every error that Headwater raises on purpose, as one tree.

    HeadwaterError                what happened + detail + hint
    ├── UsageError                the command line was used wrongly              (exit code 2)
    ├── ConfigError               a setting is wrong, unknown or unreadable      (exit code 2)
    │   └── MissingExtra          it asks for packages that are not installed
    ├── NotReady                  not yet, or not equal: asking again may help   (exit code 3)
    ├── BrokerUnreachable         no broker answers at that address
    ├── RequestRefused            the broker answered with an error code
    │   ├── TopicRefused          one topic does not take records; others would
    │   ├── ErasureUnsupported    the broker is not Headwater's: it cannot erase single records
    │   └── ErasureFailed         some records could not be erased: their segment is damaged
    ├── SchemaRefused             a schema, or a request about one, with the registry's error code
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
    │   ├── StateLost             an operator's state is lost or damaged
    │   ├── QueryRefused          the SQL of a view is wrong, or cannot be maintained incrementally
    │   └── SearchRefused         a stored query is wrong, or would match every document
    ├── SinkError                 a derived store does not take a batch
    │   ├── StoreUnreachable      it does not answer; asking again may help
    │   ├── StoreRefused          it does, but rights, tables or settings stand in the way
    │   ├── NotStaged             tasks cannot stage the batch; the driver can apply it
    │   └── RowRefused            one row does not fit
    ├── EventStoreError           the event store does not take or give events
    │   ├── EventStoreUnreachable its database does not answer; asking again may help
    │   ├── EventStoreRefused     it does, but rights, tables or settings stand in the way
    │   │   └── EventStoreMissing there is none at this address
    │   ├── EventRefused          an event, or a request for events, is malformed
    │   ├── AppendConflict        others have appended what the append did not expect
    │   │   ├── VersionConflict   a stream has another version than expected
    │   │   └── ConditionFailed   an event that matches the condition was appended
    │   ├── CommandRefused        a rule of the application does not allow a command
    │   └── FoldFailed            events do not fold into a state, or not always into the same
    ├── KeyStoreError             the keys of personal fields cannot be used
    │   ├── KeyStoreLost          the key store is not there, or another one
    │   └── SubjectErased         a subject was erased, and gets no key again
    ├── PersonalDataRefused       a record's personal fields cannot be encrypted
    ├── ErasureIncomplete         something readable of a subject is left           (exit code 3)
    ├── ReceiptRefused            a receipt of an erasure is not genuine            (exit code 3)
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


class ErasureUnsupported(RequestRefused):
    """The broker cannot erase single records. The hint says what can be done there instead."""


class ErasureFailed(RequestRefused):
    """Some records could not be erased; the others were."""


class SchemaRefused(HeadwaterError):
    """A schema is wrong, incompatible or does not exist. `code` is the registry's, as its clients
    have it: 42201 is an invalid schema, 409… an incompatible one, 404… one that does not exist.
    """

    def __init__(self, code: int, what: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(what, detail=detail, hint=hint)
        self.code = code


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


class QueryRefused(PipelineError):
    """The SQL of a view, or of `hw.sql`, is wrong, or cannot be maintained incrementally."""

    def __init__(
        self,
        what: str,
        *,
        detail: str = "",
        hint: str = "",
        offset: int | None = None,
        place: str = "",
    ) -> None:
        super().__init__(what, detail=detail, hint=hint)
        self.offset = offset  # in characters, into the text that was parsed
        self.place = place  # revenue.sql:3:14, as the user has written it


class SearchRefused(PipelineError):
    """A stored query of `hw.search` cannot be read, or would match every document."""

    exit_code = 2


class SinkError(HeadwaterError):
    """A derived store does not take a batch. Nothing of the batch is in it."""


class StoreUnreachable(SinkError):
    """The store does not answer; asking again may help."""


class StoreRefused(SinkError):
    """The store's rights, tables or settings stand in the way; asking again does not help."""


class NotStaged(SinkError):
    """Tasks cannot stage the rows of a batch; the driver can apply it."""


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


class EventStoreError(HeadwaterError):
    """The event store does not take or give events. Nothing of an append is in it."""


class EventStoreUnreachable(EventStoreError):
    """The database of the event store does not answer. Whether an append that was under way is in
    it is unknown; the same append (same event ids) can be repeated without doubling anything.
    """


class EventStoreRefused(EventStoreError):
    """Rights, tables or settings of the database stand in the way; asking again does not help."""


class EventStoreMissing(EventStoreRefused):
    """The database has no event store, or there is no such file."""


class EventRefused(EventStoreError):
    """An event, or a request for events, is malformed, too large, or of an unknown type."""


class AppendConflict(EventStoreError):
    """Others have appended what the append did not expect. To decide again may help."""


class VersionConflict(AppendConflict):
    """A stream has another version than the append expected."""

    def __init__(self, stream: str, expected: int, actual: int) -> None:
        wanted = f"version {expected}" if expected else "no such stream"
        found = f"it is at version {actual}" if actual else "there is no such stream"
        super().__init__(
            f"stream {stream} is not at the expected version",
            detail=f"expected {wanted}, {found}",
            hint="read the stream again and decide again; an append without `expected` takes"
            " any version",
        )
        self.stream = stream
        self.expected = expected
        self.actual = actual


class ConditionFailed(AppendConflict):
    """An event that matches the append's condition is behind the position that it names."""

    def __init__(self, query: str, after: int, position: int) -> None:
        super().__init__(
            "an event that matches the append's condition was appended",
            detail=f"condition: none of {query} after position {after}; one is at {position}",
            hint="read the events of the query again and decide again",
        )
        self.after = after
        self.position = position


class CommandRefused(EventStoreError):
    """A rule of the application does not allow a command in the present state."""


class FoldFailed(EventStoreError):
    """Events do not fold into a state: `evolve` raised, or two replays differ."""


class CallFailed(HeadwaterError):
    """The handler of a remote call has failed; the error is the handler's."""


class CallTimedOut(NotReady):
    """A remote call was not answered in time. It may have been executed, or may still be."""


class KeyStoreError(HeadwaterError):
    """The keys of personal fields cannot be used. Nothing is written in plain text instead."""


class KeyStoreLost(KeyStoreError):
    """The key store is not there although it was, or it is another one."""


class SubjectErased(KeyStoreError):
    """A subject was erased: no key is created for it again."""


class PersonalDataRefused(HeadwaterError):
    """A record has personal fields that cannot be encrypted: it does not say whose they are, or is
    no JSON. It is not written.
    """


class ErasureIncomplete(NotReady):
    """Something readable of a subject is left where Headwater can reach it."""


class ReceiptRefused(HeadwaterError):
    """A receipt of an erasure was changed, or is another key store's."""

    exit_code = 3


class Fenced(HeadwaterError):
    """Another process has taken over; this one must not write any more."""


class ProtocolError(HeadwaterError):
    """Something about bytes that a client sent."""


class MalformedMessage(ProtocolError):
    """The bytes are no message of the protocol. The connection they came on is closed."""


class AuthenticationFailed(ProtocolError):
    """A client does not prove who it is. The message is for the log; the client gets no reason."""
