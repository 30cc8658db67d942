"""SQL views of a project, read without Spark and without a broker."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headwater import config
from headwater.errors import HeadwaterError, UsageError
from headwater.inspect.pipelines import reported_writes
from headwater.pipelines.running import status
from headwater.pipelines.settings import ViewSettings
from headwater.spelling import nearest

_TOPICS: Final = "topic"  # the sink that needs no section
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class ViewState:
    """One [view.NAME] section, and what is known of its query."""

    settings: ViewSettings
    reads: tuple[str, ...]  # topics and other views, as its file names them
    key: tuple[str, ...]  # as configured, else as derived when it ran last; () before
    error: HeadwaterError | None  # why its file cannot be read

    @property
    def into(self) -> str:
        return f"{self.settings.into}/{self.settings.table or self.settings.name}"

    def as_json(self) -> dict[str, Any]:
        return {
            "view": self.settings.name,
            "file": self.settings.file,
            "reads": list(self.reads),
            "into": self.into,
            "key": list(self.key),
            "error": str(self.error) if self.error else None,
        }


def views_of(loaded: config.Config) -> dict[str, ViewSettings]:
    return {
        name: settings
        for name, settings in loaded.pipelines.items()
        if isinstance(settings, ViewSettings)
    }


def view_named(loaded: config.Config, name: str) -> ViewSettings:
    """Raises UsageError."""
    views = views_of(loaded)
    if name in views:
        return views[name]
    if name in loaded.pipelines:
        raise UsageError(f"{name} is no view", hint=f"it is a pipeline: [pipeline.{name}]")
    meant = nearest(name, list(views))
    hint = f"there are {', '.join(views)}" if views else "a section [view.NAME] makes one"
    raise UsageError(f"there is no view {name}", hint=f"did you mean {meant}?" if meant else hint)


def view_of_file(loaded: config.Config, file: Path) -> ViewSettings:
    """The view that has this file; else one that no section names, with the columns of topics that
    other views give.
    """
    views = views_of(loaded)
    for view in views.values():
        if (loaded.base / view.file).resolve() == file.resolve():
            return view
    schemas: dict[str, str] = {}
    for view in views.values():
        schemas.update(view.schemas)
    return ViewSettings(
        name=_NO_NAME.sub("_", file.stem) or "view",
        file=str(file.resolve()),
        into=_TOPICS,
        schemas=schemas,
        views=views,
    )


def view_states(loaded: config.Config) -> list[ViewState]:
    return [_state(loaded, view) for view in views_of(loaded).values()]


def _state(loaded: config.Config, view: ViewSettings) -> ViewState:
    from headwater.pipelines.views.composition import composed  # brings sqlglot

    reads: tuple[str, ...] = ()
    error = None
    try:
        reads = tuple(composed(view, loaded.base).reads)
    except HeadwaterError as failed:
        error = failed
    writes = reported_writes(status.read(loaded.state_dir(), view.name))
    ran = next(iter(writes.values()), {})
    return ViewState(view, reads, view.key or tuple(ran.get("key", ())), error)
