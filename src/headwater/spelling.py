"""The nearest name to one that does not exist, for hints ("did you mean …?")."""

from collections.abc import Sequence


def nearest(name: str, names: Sequence[str]) -> str:
    """The name that was probably meant, or ""."""
    import difflib

    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return matches[0] if matches else ""
