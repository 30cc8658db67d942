"""Subjects of tests: a kind "customer" with two personal fields, and a key store of its own."""

from collections.abc import Sequence
from pathlib import Path

from headwater.subjects.access import PersonalTopics
from headwater.subjects.settings import KeyPlaces, SubjectSettings, TopicFields


def key_places(directory: Path) -> KeyPlaces:
    return KeyPlaces(
        str(directory / "subjects"),
        str(directory / "subjects" / "root.key"),
        None,
        str(directory / "data" / "subjects.json"),
    )


def customers(
    directory: Path, topic: str, id_field: str = "id", fields: Sequence[str] = ("name", "email")
) -> PersonalTopics:
    kinds = {"customer": SubjectSettings("customer", {topic: TopicFields(id_field, tuple(fields))})}
    return PersonalTopics(kinds, key_places(directory))
