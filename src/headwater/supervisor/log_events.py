"""What a line of a supervisor's log (log_file.py) says: of whom, and in words."""

import json
from typing import Any, Final

_OWN_NAME: Final = "up"
_LOUD: Final = ("warning", "error", "critical")


def event_of(line: bytes) -> dict[str, Any]:
    """What is no event is a line that the supervisor itself, or a library, has printed."""
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if isinstance(event, dict) and "event" in event:
        return event
    return {"event": "note", "message": line.decode("utf-8", "replace")}


def name_of(event: dict[str, Any]) -> str:
    """Of the child, or "up"."""
    return str(event.get("child") or event.get("name") or _OWN_NAME)


def text_of(event: dict[str, Any]) -> str:
    """Of one or more lines."""
    match event["event"]:
        case "log":
            level = event.get("level") or ""
            return (f"{level}: " if level in _LOUD else "") + str(event.get("message", ""))
        case "child":
            parts = (
                event.get("state"), event.get("address"), event.get("reason"), event.get("hint"),
            )  # fmt: skip
            return ", ".join(str(part) for part in parts if part)
        case "error":
            lines = [event.get("error"), event.get("detail"), event.get("hint")]
            return "error: " + "\n".join(str(line) for line in lines if line)
        case "ready":
            return "everything is ready"
        case "stopping":
            return "killing all of it" if event.get("at_once") else "stopping in order"
        case _:
            return str(event.get("message", ""))
