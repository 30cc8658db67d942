"""A pipeline's file, with the modules beside it that it imports, reloaded when they change.

Contents count, not times: a file that is touched, or changed and changed back, is the same.
"""

import ast
import hashlib
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final, TypeAlias

from headwater.pipelines.pipeline import MODULE_PREFIX, Function, load
from headwater.pipelines.settings import PipelineSettings, ViewSettings

_RETRY_S: Final = 60.0  # for an error elsewhere: a missing topic or module

Digests: TypeAlias = "Mapping[Path, bytes | None]"


class PipelineFile:
    """`is_changed` is to be called regularly, `replacing` when it returns True; by one thread."""

    def __init__(self, settings: PipelineSettings, directory: Path) -> None:
        """Loads it. Raises ConfigError."""
        self.path = directory / settings.file
        self._settings = settings
        self._directory = directory
        digests = self._read()  # before it is loaded, so that a change meanwhile is noticed
        self.function = load(settings, directory, self._modules(digests))
        self._loaded = digests
        self._seen = digests  # by the last check
        self._failed: Digests = {}
        self._failed_s = 0.0

    @property
    def is_as_loaded(self) -> bool:
        """Also after a change that was reverted."""
        return all(self._seen[path] == digest for path, digest in self._loaded.items())

    def is_changed(self) -> bool:
        """Whether it is to be loaded again. Not while it is being written: two checks have to find
        the same. A file that did not load is retried when it changes, and every minute.
        """
        digests = {path: _digest(path) for path in self._seen}
        is_settled, self._seen = digests == self._seen, digests
        if not is_settled or self.is_as_loaded:
            return False
        return digests != self._failed or time.monotonic() - self._failed_s > _RETRY_S

    @contextmanager
    def replacing(self) -> Iterator[Function]:
        """The new function. It counts as loaded when the block ends without an error; else the old
        one is restored, and the error raised. Raises ConfigError.
        """
        digests = {**self._loaded, **self._read()}
        before = _taken_out(self._modules(self._loaded) | self._modules(digests))
        try:
            function = load(self._settings, self._directory, self._modules(digests))
            yield function
        except BaseException:
            _taken_out(self._modules(digests))
            _put_back(before)
            self._seen = self._failed = digests
            self._failed_s = time.monotonic()
            raise
        self.function = function
        self._failed = {}
        self._seen = self._read()
        # A change since it was loaded differs from what was seen: it is loaded once more.
        self._loaded = {path: digests.get(path, digest) for path, digest in self._seen.items()}

    def _read(self) -> Digests:
        """Of the file, and of those that it is made of: modules beside it that it imports, views
        that it reads, directly or not.
        """
        if isinstance(self._settings, ViewSettings):
            from headwater.pipelines.views.view_file import files_of  # brings sqlglot

            others = files_of(self._settings, self._directory)
        else:
            others = imported_by(self.path)
        return {path: _digest(path) for path in (self.path, *others)}

    def _modules(self, digests: Digests) -> set[Path]:
        return {path for path in digests if path != self.path}


def imported_by(file: Path) -> list[Path]:
    """Modules below the file's directory, found in its source: also those imported within
    functions, and those of which only a constant is used.
    """
    root = file.parent
    found: dict[Path, None] = {}
    waiting = [file]
    while waiting:
        for name in _imported_names(waiting.pop(), root):
            parts = name.split(".")
            for length in range(1, len(parts) + 1):
                stem = root.joinpath(*parts[:length])
                for module in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py"):
                    if module not in found and module != file and module.is_file():
                        found[module] = None
                        waiting.append(module)
    return list(found)


def _imported_names(file: Path, root: Path) -> Iterator[str]:
    """Dotted, relative to `root`; some may be members of a module."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # reported when it is loaded
        return
    package = file.relative_to(root).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *filter(None, [node.module])))
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)


def _taken_out(files: set[Path]) -> dict[str, ModuleType]:
    """Removes the modules of these files from sys.modules: the next import loads them again."""
    resolved = {file.resolve() for file in files}
    found = {
        name: module
        for name, module in list(sys.modules.items())  # other threads import, too
        if not name.startswith(MODULE_PREFIX)  # of a running pipeline
        and (file := getattr(module, "__file__", None))
        and Path(file).resolve() in resolved
    }
    for name in found:
        del sys.modules[name]
        package, _, own = name.rpartition(".")
        vars(sys.modules.get(package, ModuleType(package))).pop(own, None)
    return found


def _put_back(modules: Mapping[str, ModuleType]) -> None:
    sys.modules.update(modules)
    for name, module in modules.items():
        package, _, own = name.rpartition(".")
        if package in sys.modules:
            setattr(sys.modules[package], own, module)


def _digest(path: Path) -> bytes | None:
    """None if it cannot be read."""
    try:
        return hashlib.blake2b(path.read_bytes()).digest()
    except OSError:
        return None
