"""`headwater backup DIR` and `headwater restore DIR`: the log and the state of pipelines."""

import argparse
from pathlib import Path
from typing import Any

from headwater import config
from headwater.cli.parser import Command, Parser, common_options
from headwater.errors import UsageError
from headwater.supervisor.plan import data_dir_of
from headwater.terminal.output import note, plural, print_json, say, size, styled


def _configure(parser: Parser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the backup: a new or empty directory")
    common_options(parser)


def _configure_restore(parser: Parser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the backup")
    common_options(parser)


def _backup(args: argparse.Namespace) -> int:
    from headwater.backup.taking import take
    from headwater.erasure.reach import record_backup

    data_dir, state_dir = _places(args)
    notes = _ProgressNotes(quiet=args.json)
    keys = config.load(path=args.config).key_places()
    left_out = (Path(keys.key_store), Path(keys.key_file))
    made = take(data_dir, state_dir, Path(args.directory), notes, left_out)
    record_backup(data_dir, Path(args.directory))
    has_keys = Path(keys.key_store).exists()
    if has_keys:
        made = {**made, "left_out": [keys.key_store]}
    _show(f"{data_dir} is in {args.directory}", made, as_json=args.json)
    if has_keys and not args.json:
        note(
            f"the key store {keys.key_store} is not in it: back it up apart. Without it personal"
            " fields cannot be read, and in one backup with the log an erasure would not reach them"
        )
    if not args.json:
        command = styled(f"headwater restore {args.directory}", "bold")
        say(f"  {command}   makes a new data directory of it")
    return 0


def _restore(args: argparse.Namespace) -> int:
    from headwater.backup.restoring import restore

    data_dir, state_dir = _places(args)
    made = restore(Path(args.directory), data_dir, state_dir, _ProgressNotes(quiet=args.json))
    _show(f"{args.directory} is restored to {data_dir}", made, as_json=args.json)
    return 0


def _places(args: argparse.Namespace) -> tuple[Path, Path]:
    loaded = config.load(path=args.config)
    if loaded.broker.bootstrap is not None:
        raise UsageError(
            "the log is not here",
            detail=f"broker.bootstrap is {loaded.broker.bootstrap}",
            hint="back up that cluster by its own means",
        )
    return data_dir_of(loaded), loaded.state_dir()


def _show(what: str, made: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(made)
    else:
        say(f"{what}: {plural(made['files'], 'file')}, {size(made['size_bytes'])}")


class _ProgressNotes:
    """A line now and then."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._copied_bytes = 0
        self._next_bytes = self._every_bytes = 1 << 30

    def __call__(self, size_bytes: int) -> None:
        self._copied_bytes += size_bytes
        if self._copied_bytes >= self._next_bytes and not self._quiet:
            self._next_bytes += self._every_bytes
            note(f"{size(self._copied_bytes)} copied")


BACKUP = Command(
    "copy the log and the state of pipelines while everything runs",
    _configure,
    _backup,
    "  headwater backup /backups/2026-01-31",
)
RESTORE = Command(
    "restore a data directory from a backup",
    _configure_restore,
    _restore,
    "  headwater restore /backups/2026-01-31",
)
COMMANDS = {"": BACKUP}
