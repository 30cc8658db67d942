"""From the settings to the keys of a process: what writers and readers of topics are given."""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import orjson

from headwater.errors import ConfigError
from headwater.subjects.key_store import KeyStore
from headwater.subjects.keyring import Keyring
from headwater.subjects.personal import Encryptor, Marked, marked_topics
from headwater.subjects.settings import KeyPlaces, SubjectSettings

_keyrings: Final[dict[tuple[int, KeyPlaces], Keyring]] = {}
_opening: Final = threading.Lock()


def keyring_of(places: KeyPlaces, *, create: bool = True) -> Keyring:
    """The keyring of this process, opened when it is first needed. Raises KeyStoreError."""
    known = (os.getpid(), places)  # a connection of SQLite's must not cross a fork
    found = _keyrings.get(known)
    if found is None:
        with _opening:
            found = _keyrings.get(known)
            if found is None:
                found = _keyrings[known] = Keyring(KeyStore(places, create=create))
    return found


def key_option(places: KeyPlaces, subjects: Mapping[str, SubjectSettings]) -> str:
    """What a process on another machine needs to decrypt, as JSON without any secret."""
    marks = {
        topic: [[mark.kind, mark.id, mark.fields] for mark in of_topic]
        for topic, of_topic in marked_topics(subjects).items()
    }
    return orjson.dumps({"places": asdict(places), "marks": marks}).decode()


def read_key_option(text: str) -> tuple[KeyPlaces, dict[str, tuple[Marked, ...]]]:
    """Raises ConfigError."""
    try:
        found = orjson.loads(text)
        marks = {
            topic: tuple(Marked(kind, id_, tuple(fields)) for kind, id_, fields in of_topic)
            for topic, of_topic in found["marks"].items()
        }
        return KeyPlaces(**found["places"]), marks
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            "the option keys cannot be read",
            detail=f"{type(error).__name__}: {error}",
            hint="headwater.subjects.access.key_option makes it; pipelines set it",
        ) from error


@dataclass
class PersonalTopics:
    """The topics with personal fields, and the keys to encrypt them with. Without such topics no
    key store is opened.
    """

    subjects: Mapping[str, SubjectSettings]
    places: KeyPlaces
    _encryptors: dict[str, Encryptor] = field(default_factory=dict)
    marked: Mapping[str, tuple[Marked, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.marked = marked_topics(self.subjects)

    @property
    def keyring(self) -> Keyring:
        return keyring_of(self.places)

    def encryptor(
        self, topic: str, is_left: Callable[[Any], bool] = lambda _: False
    ) -> Encryptor | None:
        """None for a topic without personal fields. Raises KeyStoreError if its keys cannot be
        used: then nothing may be written.
        """
        marks = self.marked.get(topic)
        return None if marks is None else Encryptor(marks, self.keyring, is_left)

    def value(self, topic: str, value: bytes | None) -> bytes | None:
        """The value of a record as it may be written, once `flush` has returned. Raises
        PersonalDataRefused, KeyStoreError.
        """
        if topic not in self.marked:
            return value
        encryptor = self._encryptors.get(topic)
        if encryptor is None:
            found = self.encryptor(topic)
            assert found is not None, "it is among the marked ones"
            encryptor = self._encryptors[topic] = found
        return encryptor.value(value)

    def flush(self) -> None:
        """Stores new keys; records that need them may become visible afterwards."""
        if self.marked:
            self.keyring.flush()
