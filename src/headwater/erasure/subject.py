"""A subject as users name it: KIND:ID."""

from collections.abc import Mapping
from dataclasses import dataclass

from headwater.errors import UsageError
from headwater.spelling import nearest
from headwater.subjects.settings import SubjectSettings


@dataclass(frozen=True, slots=True)
class Subject:
    kind: str
    id: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"


def parse_subject(text: str, kinds: Mapping[str, SubjectSettings]) -> Subject:
    """Raises UsageError for what is not KIND:ID, or a kind that no section describes."""
    kind, colon, subject_id = text.partition(":")
    if not colon or not kind or not subject_id:
        raise UsageError(f"{text} is no subject", hint="KIND:ID, such as customer:42")
    if kind not in kinds:
        meant = nearest(kind, list(kinds))
        raise UsageError(
            f"there is no kind of subject {kind}",
            detail="kinds are " + ", ".join(kinds) if kinds else "headwater.toml has none",
            hint=f"did you mean {meant}:{subject_id}?"
            if meant
            else f"a section [subject.{kind}] in headwater.toml makes it",
        )
    return Subject(kind, subject_id)
