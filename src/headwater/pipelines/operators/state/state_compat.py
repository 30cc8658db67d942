"""State is of use only to an operator of the kind and with the settings that it was written with: a
user may give an operator's name to another one.
"""

from headwater.errors import StateLost
from headwater.pipelines.operators.runtime.contract import State


def check_layout(state: State, what: str, layout: str, kept_us: int) -> None:
    """`layout`: all that the state depends on. `kept_us`: how long it is kept; it may become less.
    Raises StateLost if the batches before had others.
    """
    known = state.document
    is_same = known.setdefault("layout", layout) == layout and "settings" not in known
    if not is_same or known.setdefault("kept_us", kept_us) < kept_us:
        raise StateLost(
            f"the state of {what} windows is that of others",
            detail="their settings, aggregates, or the types of their columns were changed"
            if not is_same
            else "allowed_lateness, or how long ago they are compared with, was made longer",
            hint="rebuild the pipeline: only the log can tell what these would hold",
        )
    known["kept_us"] = kept_us


def check_settings(state: State, what: str, settings: str) -> None:
    """`settings`: all that decides what of its inputs an operator keeps. Raises StateLost if the
    batches before had others.
    """
    known = state.document.get("layout") or state.document.setdefault("settings", settings)
    if known != settings:
        raise StateLost(
            f"the state of {what} is that of another one",
            detail=f"it was {known}, and is {settings}",
            hint="rebuild the pipeline: only the log can tell what this one would hold",
        )
