"""The client for a capture's deployment, and what its errors mean."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from bson.codec_options import DatetimeConversion
from bson.errors import BSONError
from pymongo import MongoClient
from pymongo.errors import ConfigurationError, ConnectionFailure, OperationFailure, PyMongoError

from headwater.capture.settings import CaptureSettings
from headwater.errors import (
    CaptureError,
    ConfigError,
    PositionLost,
    SourceRefused,
    SourceUnreachable,
)

TIMEOUT_MS: Final = 10_000  # unless the address sets another

UNAUTHORIZED: Final = 13
NOT_A_REPLICA_SET: Final = 40573
# The oplog no longer has the position of a resume token, or the token is not one of this
# deployment.
LOST: Final = frozenset({
    136,  # CappedPositionLost
    260,  # InvalidResumeToken
    280,  # ChangeStreamFatalError
    286,  # ChangeStreamHistoryLost
    50811,  # KeyString format error: not a resume token
})  # fmt: skip
# What a deployment answers while its primary changes, while it shuts down or starts, or when a
# cursor or a snapshot of it has expired: a retry may help.
PASSING: Final = frozenset({
    6, 7, 43, 50, 63, 89, 91, 112, 133, 134, 150, 175, 189, 202, 222, 234, 237, 239, 246, 262, 317,
    9001, 10107, 11600, 11601, 11602, 13388, 13435, 13436,
})  # fmt: skip


def connect(settings: CaptureSettings) -> MongoClient[dict[str, Any]]:
    """A client that connects when it is first used."""
    address = settings.source.reveal()
    timeouts: dict[str, Any] = {
        name: TIMEOUT_MS
        for name in ("serverSelectionTimeoutMS", "connectTimeoutMS")
        if name.lower() not in address.lower()
    }
    try:
        return MongoClient(
            address,
            connect=False,
            appname=f"headwater-{settings.name}"[:128],
            **timeouts,
            datetime_conversion=DatetimeConversion.DATETIME_MS,
            unicode_decode_error_handler="replace",
        )
    except (PyMongoError, ValueError) as error:
        # The driver's text may hold a part of the password, if that was not written as it must be.
        detail = "characters such as / : @ ? % in a user or password are written as %2F, %3A, …"
        raise ConfigError(
            f"capture.{settings.name}.source is no address of MongoDB",
            detail=detail if "@" in address else str(error),
            hint='source = "mongodb://user@host:27017/database?replicaSet=rs0"',
        ) from None


@contextmanager
def explained(settings: CaptureSettings, database: str | None) -> Iterator[None]:
    """Errors of the driver become what the capture's operator can act upon."""
    try:
        yield
    except PyMongoError as error:
        raise explain(error, settings, database) from error
    except BSONError as error:
        raise CaptureError(
            f"capture {settings.name}: MongoDB sent what is no BSON", detail=str(error)
        ) from error


def explain(error: PyMongoError, settings: CaptureSettings, database: str | None) -> CaptureError:
    name = f"capture {settings.name}"
    # The driver appends its whole picture of the deployment.
    detail = str(error).partition(", Timeout: ")[0].partition(", full error: ")[0]
    if isinstance(error, OperationFailure):
        return _refused(error, name, detail, settings, database)
    if isinstance(error, ConfigurationError):  # the server is too old for the driver
        return SourceRefused(
            f"{name}: MongoDB is too old", detail=detail, hint="MongoDB 4.4 or newer is needed"
        )
    if isinstance(error, ConnectionFailure):
        cause = error.__cause__
        if isinstance(cause, OperationFailure):
            return _refused(cause, name, str(cause), settings, database)
        return SourceUnreachable(
            f"{name}: MongoDB does not answer",
            detail=detail,
            hint=f"is it running at {settings.shown_source}, and reachable from here?",
        )
    return SourceUnreachable(f"{name}: MongoDB cannot be asked", detail=detail)


def _refused(
    error: OperationFailure, name: str, detail: str, settings: CaptureSettings, database: str | None
) -> CaptureError:
    code = error.code
    if code in LOST:
        return PositionLost(
            f"{name}: the oplog no longer goes back to where the capture stands",
            detail=detail,
            hint=f"`headwater capture reset {settings.name}` makes the next run begin with a"
            " snapshot; a larger"
            " oplog retains more: db.adminCommand({replSetResizeOplog: 1, minRetentionHours: 48})",
        )
    if code == 18:
        return SourceRefused(
            f"{name}: MongoDB does not know this user or password",
            detail=detail,
            hint="check `source`; a user of another database needs ?authSource=…",
        )
    if code == UNAUTHORIZED:
        return SourceRefused(
            f"{name}: the user may not read this or follow its changes",
            detail=detail,
            hint=grant(database),
        )
    if code == NOT_A_REPLICA_SET:
        return not_a_replica_set(settings)
    if code == 10334:  # BSONObjectTooLarge
        return SourceRefused(
            f"{name}: one change with its images is larger than 16 MB",
            detail=detail,
            hint="MongoDB 7.0 sends such changes in parts; before, the collection must do without"
            " images: db.runCommand({collMod: …, changeStreamPreAndPostImages: {enabled: false}})",
        )
    if code in PASSING or error.has_error_label("ResumableChangeStreamError"):
        return SourceUnreachable(f"{name}: MongoDB is not ready", detail=detail)
    return SourceRefused(f"{name}: MongoDB refuses", detail=detail)


def grant(database: str | None) -> str:
    role = f'{{role: "read", db: "{database}"}}' if database else '"readAnyDatabase"'
    return f"db.getSiblingDB('admin').grantRolesToUser(…, [{role}])"


def not_a_replica_set(settings: CaptureSettings) -> SourceRefused:
    return SourceRefused(
        f"capture {settings.name}: MongoDB is not a replica set, so it has no change streams",
        hint="start it with `mongod --replSet rs0` and run rs.initiate() once; one member will do",
    )
