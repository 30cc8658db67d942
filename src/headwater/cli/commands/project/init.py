"""`headwater init DIR [--sql]`: a small project that runs as it is, and explains itself."""

import argparse
import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import headwater
from headwater import extras
from headwater.cli.parser import Command, Parser, output_options
from headwater.errors import HeadwaterError, UsageError
from headwater.terminal.output import path_to_type, print_json, say, styled

_PACKAGE: Final = Path(headwater.__file__).parent
_TEMPLATE: Final = _PACKAGE / "project_template"
_SQL_TEMPLATE: Final = _PACKAGE / "sql_project_template"
_RENAMED: Final = {"gitignore": ".gitignore"}  # else it would count for our own repository
_DATABASE: Final = "shop.db"


def _configure(parser: Parser) -> None:
    parser.add_argument(
        "directory", metavar="DIR", help="directory of the project; created if it does not exist"
    )
    parser.add_argument(
        "--sql", action="store_true", help="with SQL views instead of a pipeline in Python"
    )
    output_options(parser)


def _run(args: argparse.Namespace) -> int:
    directory = Path(args.directory)
    try:
        files = _written(directory, _SQL_TEMPLATE if args.sql else _TEMPLATE)
    except OSError as error:
        raise HeadwaterError(
            "the project cannot be written",
            detail=f"{error.filename or directory}: {(error.strerror or str(error)).lower()}",
        ) from error
    if args.json:
        print_json({"directory": str(directory.resolve()), "files": files})
        return 0
    say(f"{styled(args.directory, 'bold')} has {', '.join(files)}\n\nnext:")
    install = ["pip install 'headwater[pipelines]'"] if extras.missing_of("pipelines") else []
    steps = [*path_to_type(), *install, f"cd {shlex.quote(args.directory)}", "headwater up"]
    for line in steps:
        say(f"  {styled(line, 'bold')}")
    say("\nREADME.md there says what to try then")
    return 0


def _written(directory: Path, template: Path) -> list[str]:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(
            f"{directory} is there already, and not empty", hint="name a directory that is new"
        )
    directory.mkdir(parents=True, exist_ok=True)
    files = []
    sources = {source.relative_to(template): source for source in sorted(template.rglob("*"))}
    for path, source in {**{Path(name): _TEMPLATE / name for name in _RENAMED}, **sources}.items():
        if not source.is_file() or source.suffix == ".pyc":
            continue
        path = path.with_name(_RENAMED.get(path.name, path.name))  # noqa: PLW2901
        (directory / path).parent.mkdir(exist_ok=True)
        shutil.copyfile(source, directory / path)
        files.append(str(path))
    with closing(sqlite3.connect(directory / _DATABASE)) as connection:
        connection.executescript((template / "schema.sql").read_text(encoding="utf-8"))
    return [*files, _DATABASE]


COMMANDS = {
    "": Command(
        "write a small project that runs as it is",
        _configure,
        _run,
        "  headwater init shop\n  cd shop && headwater up\n  headwater init shop --sql",
    )
}
