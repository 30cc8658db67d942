"""`headwater view check [FILE|NAME …]`: what is wrong with a query, by line and column."""

import argparse
from pathlib import Path

from headwater.cli.arguments import broker_options, load_config
from headwater.cli.parser import Command, Parser
from headwater.cli.pipelines.check import check_and_show
from headwater.config import Config
from headwater.errors import UsageError
from headwater.inspect.views import view_named, view_of_file, views_of
from headwater.pipelines.settings import ViewSettings


def _configure(parser: Parser) -> None:
    parser.add_argument(
        "names",
        metavar="FILE|NAME",
        nargs="*",
        help="views, or SQL files, also those that no [view] has (all views)",
    )
    broker_options(parser)


def _check(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    views = [_meant(loaded, name) for name in args.names] or list(views_of(loaded).values())
    if not views:
        raise UsageError(
            "there is nothing to check", hint="name a file, or write a section [view.NAME]"
        )
    return check_and_show(args, loaded, views)


def _meant(loaded: Config, name: str) -> ViewSettings:
    if name not in loaded.pipelines and (name.endswith(".sql") or Path(name).is_file()):
        if not Path(name).is_file():
            raise UsageError(f"there is no file {name}")
        return view_of_file(loaded, Path(name))
    return view_named(loaded, name)


COMMAND = Command(
    "check queries without reading records: mistakes with line and column, columns and keys",
    _configure,
    _check,
    "  headwater view check\n  headwater view check views/revenue.sql",
)
