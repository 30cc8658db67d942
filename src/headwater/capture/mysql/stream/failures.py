"""Failures of a table in the stream: why it cannot be captured any longer, and the fix."""

from headwater.capture.contract import without_values
from headwater.capture.mysql.binlog.table_map import UnknownType
from headwater.capture.settings import CaptureSettings
from headwater.errors import CaptureError


def unknown_type(error: UnknownType) -> CaptureError:
    return CaptureError(
        f"{error.table_id} has a column of a type that is not supported",
        detail=f"type {error.code} in the binlog",
        hint="leave the table out with `exclude`",
    )


def undecodable(
    table_id: str, location: str, error: Exception, settings: CaptureSettings
) -> CaptureError:
    return CaptureError(
        f"rows of {table_id} cannot be read",
        detail=f"{location}: {type(error).__name__}: {without_values(error)}",
        hint=f"SET GLOBAL binlog_row_metadata = FULL; then {_snapshot(table_id, settings)}",
    )


def partial_update(table_id: str, location: str, settings: CaptureSettings) -> CaptureError:
    return CaptureError(
        f"the log has only differences of JSON values in {table_id}",
        detail=f"{location}: a partial update",
        hint=f"SET GLOBAL binlog_row_value_options = ''; then {_snapshot(table_id, settings)}",
    )


def statements(table_id: str, location: str, settings: CaptureSettings) -> CaptureError:
    return CaptureError(
        f"the log has changes of {table_id} as statements, without the rows",
        detail=f"at {location}",
        hint="SET GLOBAL binlog_format = ROW; (sessions that are open keep the old one), then "
        + _snapshot(table_id, settings),
    )


def taken_back(table_id: str, location: str, settings: CaptureSettings) -> CaptureError:
    return CaptureError(
        f"a transaction that changed {table_id} was taken back in the log",
        detail=f"at {location}; it also changed tables without transactions",
        hint=f"do not mix both kinds in one transaction; {_snapshot(table_id, settings)}",
    )


def xa(table_id: str, settings: CaptureSettings) -> CaptureError:
    return CaptureError(
        f"{table_id} was changed by an XA transaction, which is not supported",
        detail="the log has its rows when it is prepared, not when it is committed",
        hint=_snapshot(table_id, settings),
    )


def _snapshot(table_id: str, settings: CaptureSettings) -> str:
    command = f"headwater capture snapshot {settings.name} --table {table_id}"
    return f"take a new snapshot of the table: {command}"
