"""Versions of a target as directories, and a symbolic link to the live one.

    orders     -> orders__v2        what readers open
    orders__v1/
    orders__v2/

A directory is never renamed, so a running writer does not depend on which version is live. A new
link is renamed over the old one: a reader that opens `orders` gets the old version or the new one,
never a mixture. Needs a file system with links; object stores have none.
"""

import contextlib
import os
import re
import secrets
import shutil
from typing import Final

from headwater.errors import ConfigError, StoreRefused, StoreUnreachable
from headwater.sinks.contract import Target
from headwater.sinks.settings import SinkSettings

_NAME_BYTES: Final = 200  # of 255: versions and temporary files add to it


def directory_of(settings: SinkSettings) -> str:
    """The absolute path that `url` names: a path, or file:///path."""
    url = settings.url.reveal() if settings.url is not None else ""
    if not url:
        raise ConfigError(
            f"sink {settings.name} has no url", hint='url = "/a/directory" says where it is'
        )
    return os.path.abspath(url.removeprefix("file://"))


def directory_name(name: str) -> str:
    """One directory for each name: tables are not nested."""
    if not name or name[0] in "._" or not name.isprintable():
        raise ConfigError(
            f"{name!r} is no name for a directory of rows", hint="readers pass over . and _"
        )
    if len(name.encode()) > _NAME_BYTES:
        raise ConfigError(f"{name} is too long for a directory", detail=f"at most {_NAME_BYTES}")
    return re.sub(r"[/\\%]", ".", name)  # delta-rs takes a path for a URL


class VersionDirectories:
    """The directories of one target, and the link to the live one."""

    def __init__(self, root: str, target: Target) -> None:
        self._name = directory_name(target.name)
        self._parent = root
        self._link = os.path.join(root, self._name)

    def check(self) -> None:
        """StoreRefused if the name is taken, or directories cannot be created. Changes nothing."""
        self.live()
        at = self._parent
        while not os.path.exists(at):
            at = os.path.dirname(at)
        if not os.path.isdir(at) or not os.access(at, os.W_OK | os.X_OK):
            raise StoreRefused(f"{self._parent} cannot be written to", detail=f"{at} is in the way")

    def path(self, version: int) -> str:
        return f"{self._link}__v{version}"

    def numbers(self) -> list[int]:
        """Of all directories with the name of a version, also if another program made them."""
        pattern = re.compile(re.escape(self._name) + r"__v([1-9]\d*)")
        with contextlib.suppress(FileNotFoundError):
            matches = [pattern.fullmatch(name) for name in os.listdir(self._parent)]
            return sorted(int(match[1]) for match in matches if match)
        return []

    def live(self) -> int:
        """Version 1 if there is no link: it is live from its start, before it has files."""
        try:
            linked = os.readlink(self._link)
        except FileNotFoundError:
            return 1
        except OSError as error:
            raise self._foreign() from error
        match = re.fullmatch(re.escape(self._name) + r"__v([1-9]\d*)", linked)
        if match is None:
            raise self._foreign()
        return int(match[1])

    def make_parent(self) -> None:
        try:
            os.makedirs(self._parent, exist_ok=True)
        except OSError as error:
            raise refused(error, self._parent) from error

    def make_live(self, version: int) -> None:
        self.live()  # raises if the name is taken
        new = f"{self._link}.{secrets.token_hex(8)}.link"
        try:
            os.symlink(os.path.basename(self.path(version)), new)
            os.replace(new, self._link)
            sync_directory(self._parent)
        except OSError as error:
            raise refused(error, self._link) from error

    def has_link(self) -> bool:
        return os.path.islink(self._link)

    def drop(self, version: int) -> None:
        """Renamed at once, so that no reader finds it; then removed file by file."""
        if version == self.live():
            raise StoreRefused(f"version {version} of {self._name} is live", hint="promote another")
        dropped = os.path.join(self._parent, f".{self._name}__v{version}.dropped")
        try:
            shutil.rmtree(dropped, ignore_errors=True)  # of a drop that was interrupted
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.path(version), dropped)
            sync_directory(self._parent)
            shutil.rmtree(dropped, ignore_errors=True)
        except OSError as error:
            raise refused(error, self.path(version)) from error

    def _foreign(self) -> StoreRefused:
        return StoreRefused(
            f"{self._link} exists, and is no link of a sink",
            detail="files of another program are not written to",
            hint="choose another name for the table, or move the directory away",
        )


def refused(error: OSError, path: str) -> StoreRefused | StoreUnreachable:
    """Retried unless it is about permissions or names: a full or failing disk can recover."""
    if isinstance(error, PermissionError | NotADirectoryError | IsADirectoryError):
        return StoreRefused(f"{path} cannot be written", detail=str(error))
    return StoreUnreachable(f"{path} cannot be written", detail=str(error))


def sync_directory(path: str) -> None:
    """Makes renames durable: without it a power cut can undo them."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
