"""`headwater view list | check | explain | read`: SQL views."""

import argparse

from headwater.cli.arguments import broker_options, load_config
from headwater.cli.parser import Command, Parser
from headwater.cli.views import check, explain, read
from headwater.inspect.views import ViewState, view_states
from headwater.terminal.output import note, print_json, say, table

_NONE = "no views yet; a section [view.NAME] in headwater.toml makes one"


def _list(args: argparse.Namespace) -> int:
    views = view_states(load_config(args))
    if args.json:
        print_json([view.as_json() for view in views])
    elif views:
        say(table(("view", "file", "reads", "into", "key"), map(_cells, views)))
        for view in views:
            if view.error is not None:
                note(f"\n{view.error}")
    else:
        note(_NONE)
    return 1 if any(view.error for view in views) else 0


def _cells(view: ViewState) -> tuple[str, ...]:
    reads = ", ".join(view.reads) or ("error" if view.error else "-")
    key = ", ".join(view.key) or "as implied"
    return view.settings.name, view.settings.file, reads, view.into, key


def _configure_list(parser: Parser) -> None:
    broker_options(parser)


COMMANDS = {
    "list": Command(
        "list views with the tables that they read, where they go, and their keys",
        _configure_list,
        _list,
    ),
    "check": check.COMMAND,
    "explain": explain.COMMAND,
    "read": read.COMMAND,
}
