"""`headwater COMMAND …`: finds the command, runs it, turns errors into lines and exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not equal or not ready. A command's module is
imported only when it is called, so that `headwater broker` pays for nothing but the broker.
"""

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NoReturn

from headwater import __version__, extras
from headwater.errors import HeadwaterError, UsageError
from headwater.spelling import nearest
from headwater.terminal.output import note, say, styled

# name: (its module in cli/commands, what it is for)
COMMANDS: Final = {
    "demo": ("project.demo", "run a demo shop with everything derived from it"),
    "init": ("project.init", "write a small project that runs as it is"),
    "up": ("project.up", "run everything that headwater.toml asks for"),
    "down": ("project.down", "stop what `headwater up` runs"),
    "restart": ("project.restart", "restart one child of `headwater up`, or all of a detached one"),
    "logs": ("project.logs", "what `headwater up -d` and its children have written"),
    "broker": ("log.broker", "run the broker"),
    "topic": ("log.topic", "create, list, describe, alter and delete topics"),
    "produce": ("log.produce", "write records from stdin, a file or a pipe to a topic"),
    "consume": ("log.consume", "read records from topics to stdout"),
    "multicast": ("messaging.multicast", "messages over UDP multicast: send, receive"),
    "user": ("access.user", "users: create, change the password, list, delete"),
    "acl": ("access.acl", "access control lists (ACLs): add, list, remove"),
    "group": ("log.group", "consumer groups: list, describe (lag), seek, delete"),
    "queue": ("log.queue", "queues (share groups): list, describe, alter, redrive dead letters"),
    "capture": (
        "flow.capture",
        "change data capture of databases: list, status, run, snapshot, reset",
    ),
    "pipeline": (
        "flow.pipeline",
        "stores derived from the log: list, status, check, run, diff, rebuild, promote",
    ),
    "view": ("flow.view", "SQL views: list, check, explain, read"),
    "search": ("flow.search", "stored searches over streams: add, list, show, test, drop"),
    "pattern": ("flow.pattern", "stored patterns over streams: add, list, show, test, drop"),
    "events": ("flow.events", "the event store: append, read, streams, replay, stats"),
    "erase": ("access.erase", "erase a person's data: the right to be forgotten"),
    "subject": ("access.subject", "keys of subjects (persons): list, rotate, allow, public-key"),
    "verify": ("flow.verify", "prove that a derived store equals what the log says"),
    "wait": ("flow.wait", "wait until a derived store has what was written"),
    "why": ("flow.why", "show the lineage of a derived row: its records in the log"),
    "console": ("project.console", "run the web console"),
    "gateway": ("project.gateway", "run the gateway: topics and tables over HTTP"),
    "token": ("access.token", "tokens of machines for the gateway: create, list, revoke"),
    "webhook": (
        "messaging.webhook",
        "webhooks that are sent: add, list, show, pause, resume, remove, test, redeliver",
    ),
    "alert": ("messaging.alert", "alerts: list, test, silence, history"),
    "rpc": ("messaging.rpc", "request and reply over topics: call, ask, serve"),
    "status": ("project.status", "show the state of everything on one screen"),
    "backup": ("project.backup", "copy the log and the state of pipelines while everything runs"),
    "restore": ("project.restore", "restore a data directory from a backup"),
    "doctor": ("project.doctor", "check this machine and the configuration"),
    "completion": ("project.completion", "print a completion script for a shell"),
}
_HELP: Final = ("-h", "--help", "help")
_VERSION: Final = ("-V", "--version")
# Options that may stand before the command, too, and whether each takes a value. A command that
# does not have one refuses it.
_GLOBAL_OPTIONS: Final = {
    "--bootstrap": True,
    "--config": True,
    "--json": False,
    "--verbose": False,
    "-X": True,
    "-b": True,
    "-v": False,
}


def main() -> NoReturn:
    """The entry point of the `headwater` program."""
    _open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A locale without "…" or "€" must not end a command.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has closed the pipe (`| head`), which is no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    archive = sys.modules.get("headwater.log.archive.s3")
    if archive is not None and archive.requests_were_made:
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _open_standard_streams() -> None:
    """The parent may have closed them (`>&-`): then they lead nowhere, and no file that we
    open replaces them.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def run(argv: Sequence[str]) -> int:
    """Runs one command line. Errors become lines on stderr; the traceback is added with -v."""
    verbose = any(argument in ("-v", "--verbose") for argument in argv)
    try:
        return _dispatch(list(argv))
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        return 130
    except HeadwaterError as error:
        _print_traceback(verbose)
        _print_error(error, as_json="--json" in argv)
        return error.exit_code
    except Exception as error:
        _print_traceback(verbose)
        if isinstance(error, ModuleNotFoundError) and (
            missing := extras.explained(error, "this command")
        ):
            _print_error(missing, as_json="--json" in argv)
            return missing.exit_code
        unexpected = HeadwaterError(
            f"unexpected {type(error).__name__}: {error}",
            hint="this is a bug in headwater" + ("" if verbose else "; -v shows the traceback"),
        )
        _print_error(unexpected, as_json="--json" in argv)
        return 1


def _dispatch(argv: list[str]) -> int:
    given, argv = _split_global_options(argv)
    if not argv or argv[0] in _HELP:
        say(_overview())
        return 0 if argv else 2
    if argv[0] in _VERSION:
        say(f"headwater {__version__}")
        return 0
    name, *rest = argv
    if name not in COMMANDS:
        raise _unknown_command(name, "headwater", list(COMMANDS))
    module, summary = COMMANDS[name]
    commands = import_module(f"headwater.cli.commands.{module}").COMMANDS
    prog = f"headwater {name}"
    if "" in commands:
        command = commands[""]
    else:
        more, rest = _split_global_options(rest)
        given += more
        if not rest or rest[0] in _HELP:
            lines = [f"  {name:10} {command.summary}" for name, command in commands.items()]
            say(f"usage: {prog} COMMAND …\n\n{summary}\n\n" + "\n".join(lines))
            say(f"\n`{prog} COMMAND --help` shows more")
            return 0 if rest else 2
        subcommand, *rest = rest
        if subcommand not in commands:
            raise _unknown_command(subcommand, prog, list(commands))
        command = commands[subcommand]
        prog = f"{prog} {subcommand}"
    args = command.parser(prog).parse([*given, *rest])
    code: int = command.run(args)
    return code


def _split_global_options(argv: list[str]) -> tuple[list[str], list[str]]:
    """(the options before the command, the command and what follows). Raises UsageError."""
    at = 0
    while at < len(argv) and argv[at].startswith("-") and argv[at] not in (*_HELP, *_VERSION):
        option = argv[at].partition("=")[0] if argv[at].startswith("--") else argv[at][:2]
        if option not in _GLOBAL_OPTIONS:
            raise UsageError(
                f"unknown option {argv[at]}",
                hint=f"before the command: {', '.join(_GLOBAL_OPTIONS)}; all others after it",
            )
        at += 2 if _GLOBAL_OPTIONS[option] and argv[at] == option else 1
    return argv[:at], argv[at:]


def _overview() -> str:
    lines = [f"  {name:10} {summary}" for name, (_, summary) in COMMANDS.items()]
    return (
        "usage: headwater COMMAND …\n\n"
        "Keeps every derived store in step with its source, through one durable log.\n\n"
        + "\n".join(lines)
        + "\n\n`headwater COMMAND --help` shows more; `headwater demo` is a good start"
    )


def _unknown_command(name: str, prog: str, commands: list[str]) -> UsageError:
    meant = nearest(name, commands)
    return UsageError(
        f"{prog} has no command {name}",
        detail="" if meant else "commands: " + ", ".join(commands),
        hint=f"did you mean `{prog} {meant}`?" if meant else f"`{prog} --help` shows more",
    )


def _print_error(error: HeadwaterError, *, as_json: bool) -> None:
    if as_json:
        import json

        parts = {"error": error.what, "detail": error.detail, "hint": error.hint}
        note(json.dumps({key: text for key, text in parts.items() if text}))
        return
    lines = [f"{styled('error:', 'bold red', sys.stderr)} {error.what}"]
    lines += [f"  {line}" for line in error.detail.splitlines()]
    if error.hint:
        lines.append(f"{styled('hint:', 'bold cyan', sys.stderr)} {error.hint}")
    note("\n".join(lines))


def _print_traceback(verbose: bool) -> None:
    if verbose:
        import traceback

        traceback.print_exc()


if __name__ == "__main__":
    main()
