"""Restores a backup into a new data directory.

Everything is copied beside that directory, compared with the checksums, and put there at the end: a
restore that fails or is killed leaves no half directory.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from headwater.backup.copying import Copied, OnCopied, copy, sync, sync_all
from headwater.backup.taking import FORMAT, LOG, MANIFEST, PIPELINES
from headwater.errors import CorruptLog, DataDirectoryInUse, HeadwaterError, UsageError
from headwater.log.catalog import NAME as CATALOG
from headwater.log.catalog import Catalog
from headwater.log.disk.data_directory import CLEAN_SHUTDOWN, UP_LOCK
from headwater.log.disk.files import Files
from headwater.private_files import is_locked


def restore(source: Path, data_dir: Path, state_dir: Path, on_copied: OnCopied) -> dict[str, Any]:
    """Returns the manifest without the files. Raises UsageError if `source` is no backup or
    something is there already, HeadwaterError if the backup is damaged.
    """
    manifest = _manifest(source)
    files = _files(manifest)
    for directory in (data_dir, state_dir):
        _check_free(directory)
    log = _beside(data_dir)
    is_inside = state_dir.is_relative_to(data_dir)
    pipelines = log / state_dir.relative_to(data_dir) if is_inside else _beside(state_dir)
    made = {log: data_dir} if is_inside else {log: data_dir, pipelines: state_dir}
    try:
        for directory in made:
            shutil.rmtree(directory, ignore_errors=True)  # of a restore that was killed
            directory.mkdir(parents=True, mode=0o700)
        for file in files:
            part, _, path = file.path.partition("/")
            target = (pipelines if part == PIPELINES else log) / path
            if copy(source / file.path, target, None, on_copied) != (file.size_bytes, file.crc):
                raise HeadwaterError("the backup is damaged", detail=str(source / file.path))
        _begin_log(log)
        for directory, target in made.items():
            sync_all(directory)
            directory.replace(target)
            sync(target.parent)
    except OSError as error:
        raise HeadwaterError("the backup cannot be restored", detail=str(error)) from error
    finally:
        for directory in made:
            shutil.rmtree(directory, ignore_errors=True)
    size_bytes = sum(file.size_bytes for file in files)
    return {**manifest, "files": len(files), "size_bytes": size_bytes}


def _begin_log(log: Path) -> None:
    """Makes the copy a log of its own: the first start takes it for one after a crash, and clients
    can distinguish it from the original, which may have continued. Raises HeadwaterError if its
    catalog is damaged, or names what no topic can be named.
    """
    if not (log / CATALOG).exists():
        raise HeadwaterError("the backup is damaged", detail=f"no {CATALOG} in it")
    (log / CLEAN_SHUTDOWN).unlink(missing_ok=True)
    catalog = Catalog(Files(), str(log))
    try:
        catalog.open()
    except CorruptLog as error:
        raise HeadwaterError("the backup is damaged", detail=f"{error}") from error
    catalog.begin_restored()


def _manifest(source: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((source / MANIFEST).read_text(encoding="utf-8"))
        format_ = manifest["format"]
        if not isinstance(manifest.get("files"), list):
            raise TypeError("no list of files")
    except FileNotFoundError:
        raise UsageError(
            f"{source} is no backup, or one that was not completed", detail=f"no {MANIFEST} in it"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HeadwaterError("the backup is damaged", detail=f"{MANIFEST}: {error}") from error
    if format_ != FORMAT:
        raise HeadwaterError(
            "the backup is of another version",
            detail=f"format {format_}, made by headwater {manifest.get('version')}",
            hint="restore it with that version, then upgrade",
        )
    return manifest


def _files(manifest: dict[str, Any]) -> list[Copied]:
    """A backup may come from elsewhere: it names what is in it, and nothing outside."""
    found = []
    for entry in manifest.pop("files", ()):
        match entry:
            case [str(path), int(), int()] if _is_inside(path):
                found.append(Copied(*entry))
            case _:
                raise HeadwaterError("the backup is damaged", detail=f"{MANIFEST}: {entry!r:.200}")
    return found


def _is_inside(path: str) -> bool:
    part, *others = path.split("/")
    return (
        part in (LOG, PIPELINES)
        and bool(others)
        and all(part not in ("", ".", "..") and "\0" not in part for part in others)
    )


def _check_free(directory: Path) -> None:
    if is_locked(directory / UP_LOCK):
        raise DataDirectoryInUse(
            "`headwater up` uses this data directory",
            detail=str(directory),
            hint="stop it; then move the directory away",
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(
            f"{directory} is not empty",
            hint="a backup is restored into a new data directory: move this one away, or set"
            " broker.data_dir",
        )


def _beside(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.restoring")
