"""State compatibility: stored state is of use only to an operator with the same settings.

A user may give an operator's name to another one, or change its settings.
"""

from collections.abc import Sequence

from headwater.errors import StateLost
from headwater.pipelines.operators.runtime.contract import State


def check_layout_compatible(state: State, what: str, layout: str, retention_us: int) -> None:
    """Windows. `layout`: all that the state depends on. `retention_us`: how long state is retained;
    it may become less. Raises StateLost if earlier batches had others.
    """
    stored = state.document
    is_same = stored.setdefault("layout", layout) == layout and "settings" not in stored
    if not is_same or stored.setdefault("kept_us", retention_us) < retention_us:
        raise StateLost(
            f"the state of {what} windows is that of others",
            detail="their settings, aggregates, or the types of their columns were changed"
            if not is_same
            else "allowed_lateness, or how long ago they are compared with, was made longer",
            hint="rebuild the pipeline: the state is derived from the log again",
        )
    stored["kept_us"] = retention_us


def check_settings_compatible(state: State, what: str, settings: str) -> None:
    """Joins. `settings`: all that decides which rows of its inputs an operator stores. Raises
    StateLost if earlier batches had others.
    """
    stored = state.document.get("layout") or state.document.setdefault("settings", settings)
    if stored != settings:
        raise StateLost(
            f"the state of {what} is that of another one",
            detail=f"it was {stored}, and is {settings}",
            hint="rebuild the pipeline: the state is derived from the log again",
        )


def check_shared(states: Sequence[State], name: str) -> None:
    """Raises StateLost unless all buckets have the same in their documents under this name."""
    first = states[0].document.get(name)
    if any(state.document.get(name) != first for state in states):
        raise StateLost(
            f"the buckets of an operator have different {name}",
            hint="rebuild the pipeline: the state is derived from the log again",
        )
