"""The sections of `headwater status` about processes, captures, pipelines and stores."""

import dataclasses
import time
from typing import Any, Final

from headwater.config import Config
from headwater.errors import HeadwaterError
from headwater.supervisor import status_file
from headwater.supervisor.plan import BROKER, data_dir_of
from headwater.terminal.output import count, duration, plural, say, styled, table

_STYLES: Final = {"ready": "green", "following": "green", "running": "green"}
_MAX_REASON_CHARACTERS: Final = 60


def supervisor_of(config: Config) -> status_file.SupervisorStatus | None:
    return status_file.read(data_dir_of(config))


def broker_address_of(supervisor: status_file.SupervisorStatus | None) -> str | None:
    """Where the broker is, which may have taken a free port."""
    children = supervisor.children if supervisor else []
    return next((child.address for child in children if child.kind == BROKER), None)


def supervisor_state(supervisor: status_file.SupervisorStatus | None) -> dict[str, Any] | None:
    if supervisor is None:
        return None
    is_ready = all(child.state == status_file.READY for child in supervisor.children)
    return {"ready": is_ready and not supervisor.stopping, **dataclasses.asdict(supervisor)}


def captures_state(config: Config) -> list[dict[str, Any]]:
    """Those of the configuration. One whose state cannot be read has an error."""
    if not config.captures:
        return []
    from headwater.capture import positions
    from headwater.client.reading.compacted import read_committed_latest
    from headwater.inspect.captures import capture_states, warning_of, with_lags_now

    try:
        records = read_committed_latest(config.bootstrap(), config.client, positions.TOPIC)
    except HeadwaterError as error:
        return [
            {"capture": name, "ready": False, "state": "unknown", "error": str(error)}
            for name in config.captures
        ]
    stored = {name: positions.decode(name, records) for name in config.captures}
    captures = with_lags_now(capture_states(config.captures, stored))
    return [
        {"ready": capture.is_well, "warning": warning_of(capture), **capture.as_json()}
        for capture in captures
    ]


def pipelines_state(config: Config) -> list[dict[str, Any]]:
    if not config.pipelines:
        return []
    from headwater.inspect.pipelines import pipeline_states

    try:
        pipelines = pipeline_states(config, list(config.pipelines))
    except HeadwaterError as error:
        return [
            {"pipeline": name, "ready": False, "state": "unknown", "error": str(error)}
            for name in config.pipelines
        ]
    return [{"ready": pipeline.is_well, **pipeline.as_json()} for pipeline in pipelines]


def show_supervisor(state: dict[str, Any] | None) -> None:
    if state is None:
        return
    ready = sum(child["state"] == status_file.READY for child in state["children"])
    summary = f"{ready} of {len(state['children'])} ready" + (", stopping" * state["stopping"])
    word = styled(summary, "bold green" if state["ready"] else "bold yellow")
    uptime = duration(time.time() - state["started_at"])
    say(f"up      process {state['pid']} for {uptime}  {word}\n")
    headers = ("child", "state", ">pid", "uptime", ">restarts", "reason")
    say(_coloured(table(headers, [_child_cells(child) for child in state["children"]])) + "\n")
    for child in state["children"]:
        if child["state"] != status_file.READY and child["hint"]:
            say(f"{styled('error:', 'bold red')} {child['name']}: {child['reason']}")
            say(f"{styled('hint:', 'bold cyan')} {child['hint']}\n")


def _child_cells(child: dict[str, Any]) -> tuple[Any, ...]:
    is_running = child["pid"] is not None and child["started_at"] is not None
    uptime = duration(time.time() - child["started_at"]) if is_running else "-"
    reason = child["reason"].partition("\n")[0]
    if len(reason) > _MAX_REASON_CHARACTERS:
        reason = reason[: _MAX_REASON_CHARACTERS - 1] + "…"
    return child["name"], child["state"], child["pid"] or "-", uptime, child["restarts"], reason


def show_captures(captures: list[dict[str, Any]]) -> None:
    if not captures:
        return
    headers = ("capture", "state", "lag", "tables", "source")
    say("\n" + _coloured(table(headers, [_capture_cells(capture) for capture in captures])))
    _show_errors("capture", captures)
    for capture in captures:
        if capture.get("warning"):
            say(f"{styled('warning:', 'bold yellow')} {capture['capture']}: {capture['warning']}")


def _capture_cells(capture: dict[str, Any]) -> tuple[str, ...]:
    lag = "-"
    if capture.get("lag_seconds") is not None:
        lag = "none" if capture["lag_bytes"] == 0 else duration(capture["lag_seconds"])
    tables = capture.get("tables", [])
    copying = sum(bool(table["snapshot"]) and not table["snapshot"]["done"] for table in tables)
    failed = sum(table["failed"] is not None for table in tables)
    shown = plural(len(tables), "table")
    shown += f", {count(copying)} copying" if copying else ""
    shown += f", {count(failed)} failed" if failed else ""
    return capture["capture"], capture["state"], lag, shown, capture.get("source") or "-"


def show_pipelines(pipelines: list[dict[str, Any]]) -> None:
    if not pipelines:
        return
    rows = []
    for pipeline in pipelines:
        rows += [
            (
                pipeline["pipeline"],
                write["state"] if pipeline["state"] == "running" else pipeline["state"],
                write["write"],
                _shown_rate(write),
                _shown_step(write),
            )
            for write in pipeline.get("writes", [])
        ] or [(pipeline["pipeline"], pipeline["state"], "-", "-", "-")]
    headers = ("pipeline", "state", "store", ">rate", "in step")
    say("\n" + _coloured(table(headers, rows)))
    _show_errors("pipeline", pipelines)
    for pipeline in pipelines:
        for write in pipeline.get("writes", []):
            if write.get("error") and pipeline["state"] in ("failed", "running"):
                say(f"{styled('error:', 'bold red')} {write['write']}: {write['error']}")


def _show_errors(kind: str, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row.get("error"):
            say(f"{styled('error:', 'bold red')} {row[kind]}: {row['error']}")


def _shown_rate(write: dict[str, Any]) -> str:
    rate = write.get("rows_per_s")
    return "-" if rate is None else f"{count(round(rate))}/s"


def _shown_step(write: dict[str, Any]) -> str:
    if write["store_error"]:
        return f"unknown: {write['store_error']}"
    if write["lag"] is None:
        return "unknown"
    return "yes" if write["lag"] == 0 else f"{plural(write['lag'], 'record')} behind"


def _coloured(text: str) -> str:
    """States stand in the second column."""
    lines = []
    for line in text.split("\n"):
        for state, style in _STYLES.items():
            before, found, after = line.partition(f"  {state} ")
            if found and before.strip() and "  " not in before.strip():
                line = f"{before}  {styled(state, style)} {after}"  # noqa: PLW2901
                break
        lines.append(line)
    return "\n".join(lines)
