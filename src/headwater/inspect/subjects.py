"""The personal fields of a configuration, and the keys of their subjects."""

from headwater import config
from headwater.subjects.access import PersonalTopics
from headwater.subjects.key_database import exists


def personal_topics(loaded: config.Config | str | None = None) -> PersonalTopics | None:
    """What writers of topics have to encrypt; None if the configuration names no subject. Without
    a configuration (or its path) it is read as by any command. Raises ConfigError.
    """
    if loaded is None or isinstance(loaded, str):
        loaded = config.load(path=loaded)
    if not loaded.subject_kinds:
        return None
    return PersonalTopics(loaded.subject_kinds, loaded.key_places())


def existing_personal_topics(loaded: config.Config) -> PersonalTopics | None:
    """The same for checks, which create no key store: None before its first use, too."""
    return personal_topics(loaded) if exists(loaded.key_places()) else None
