"""The commits of a version of a Parquet table: numbered files, of which the last one counts."""

import contextlib
import os
import re
import secrets
import time
from dataclasses import dataclass
from typing import Final

import orjson
import pyarrow as pa

from headwater.errors import StoreRefused, StoreUnreachable
from headwater.sinks.contract import (
    Position,
    fields_from_text,
    fields_to_text,
    offsets_from,
)
from headwater.sinks.version_directories import (
    sync_directory,
)

_COMMITS: Final = "_headwater"  # readers skip names that begin with _ or .
_BEGIN: Final = "begin"  # its content is the number before the first commit
_RETAINED: Final = 10  # commits; only the last one counts


@dataclass(frozen=True, slots=True)
class Commit:
    """The content of a commit: epoch, position, fields and files."""

    owner: str
    epoch: int
    position: Position | None
    fields: pa.Schema
    files: dict[str, str]  # of the last batch: temporary name to final name

    def to_json(self) -> bytes:
        return orjson.dumps(
            {
                "owner": self.owner,
                "epoch": self.epoch,
                "position": self.position and orjson.loads(self.position.to_json()),
                "fields": fields_to_text(self.fields),
                "files": self.files,
            }
        )

    @classmethod
    def from_json(cls, stored: bytes) -> "Commit":
        read = orjson.loads(stored)
        position = read["position"]
        if position is not None:
            position = Position(
                position["query"], position["batch"], offsets_from(position["offsets"])
            )
        fields = fields_from_text(read["fields"])
        return cls(read["owner"], read["epoch"], position, fields, read["files"])


class Commits:
    """The commits of one version. The one with the highest number counts; earlier ones may be
    missing, or be a late writer's, which checks and finds that its commit does not count. Numbers
    begin with the time at which the version was created: a writer of a dropped one has lower ones.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.path = os.path.join(root, _COMMITS)

    def last(self) -> int:
        try:
            return max(
                (int(name[:-5]) for name in os.listdir(self.path) if _is_commit(name)), default=0
            )
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def begin(self) -> int:
        """The number before the first, on which all writers of this directory agree."""
        path = os.path.join(self.path, _BEGIN)
        with contextlib.suppress(FileExistsError):
            self._put(path, str(time.time_ns()).encode())
        with open(path, "rb") as file:
            return int(file.read())

    def read(self) -> Commit:
        for _ in range(_RETAINED):
            number = self.last()
            with contextlib.suppress(FileNotFoundError):  # many commits since
                return self.read_one(number)
        raise StoreUnreachable(f"{self.path} changes all the time")

    def read_one(self, number: int) -> Commit:
        path = self._file(number)
        try:
            with open(path, "rb") as file:
                return Commit.from_json(file.read())
        except (ValueError, LookupError, TypeError, pa.ArrowException) as error:
            raise StoreRefused(
                f"{path} cannot be read", detail=str(error), hint="a rebuild begins a new version"
            ) from error

    def add(self, number: int, state: Commit) -> bool:
        """Whether it is now the last one; if so, it is durable."""
        try:
            self._put(self._file(number), state.to_json())
        except FileExistsError:
            return False
        if self.last() != number:
            return False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file(number - _RETAINED))
        return True

    def _put(self, path: str, contents: bytes) -> None:
        """Atomic and durable. FileExistsError if there is one."""
        temporary = os.path.join(self.path, f".{secrets.token_hex(8)}.tmp")
        with open(temporary, "wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        finally:
            os.unlink(temporary)
        sync_directory(self.path)

    def _file(self, number: int) -> str:
        return os.path.join(self.path, f"{number:020}.json")


def check_owner(state: Commit, owner: str, root: str) -> None:
    if state.owner != owner:
        raise StoreRefused(
            f"{root} is not of {owner}",
            detail=f"it belongs to {state.owner}",
            hint="choose another name for the table",
        )


def check_is_free(commits: Commits) -> None:
    """Raises StoreRefused for a directory with files and no commits: of another program."""
    if commits.last() or not os.path.lexists(commits.root):
        return
    if not os.path.isdir(commits.root) or set(os.listdir(commits.root)) - {_COMMITS}:
        raise StoreRefused(
            f"{commits.root} exists, and no pipeline wrote it",
            hint="choose another name for the table, or move the directory away",
        )


def _is_commit(name: str) -> bool:
    return re.fullmatch(r"\d{20}\.json", name) is not None
