"""`headwater rpc call | ask | serve`: request and reply over topics."""

import argparse
import importlib
import os
import shlex
import sys
from typing import Any

import orjson

from headwater.cli.arguments import broker_options, load_config
from headwater.cli.parser import Command, Parser, duration_s, whole_number
from headwater.errors import UsageError
from headwater.terminal.output import note, print_json, say


def _configure_call(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="the service")
    parser.add_argument(
        "body", metavar="JSON", nargs="?", help="the request (null); - reads standard input"
    )
    parser.add_argument(
        "--timeout", metavar="DURATION", type=duration_s, default=30.0,
        help="how long to wait for the reply (30s)",
    )  # fmt: skip
    broker_options(parser)


def _configure_id(parser: Parser) -> None:
    _configure_call(parser)
    parser.add_argument("--id", metavar="ID", help="id of the request, if it may be a repeated one")


def _call(args: argparse.Namespace) -> int:
    from headwater.rpc.caller import Caller

    loaded, body = load_config(args), _body(args.body)
    caller = Caller(loaded.bootstrap(), loaded.client)
    try:
        _show(caller.call(args.name, body, timeout_s=args.timeout, request_id=args.id), args.json)
    finally:
        caller.close()
    return 0


def _ask(args: argparse.Namespace) -> int:
    from headwater.rpc.caller import Caller

    loaded, body = load_config(args), _body(args.body)
    caller = Caller(loaded.bootstrap(), loaded.client)
    try:
        _show(caller.ask(args.name, body, timeout_s=args.timeout), args.json)
    finally:
        caller.close()
    return 0


def _show(reply: Any, as_json: bool) -> None:
    if as_json or not isinstance(reply, str):
        print_json(reply)
    else:
        say(reply)


def _body(text: str | None) -> Any:
    data = sys.stdin.buffer.read() if text == "-" else (text or "null").encode()
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise UsageError(
            "the request is not JSON", detail=str(error), hint="""a text is written '"text"'"""
        ) from None


def _configure_serve(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="the service")
    parser.add_argument(
        "--command", metavar="COMMAND", dest="shell_command",
        help="run for each request: its JSON on standard input, the reply on standard output",
    )  # fmt: skip
    parser.add_argument(
        "--function", metavar="MODULE:FUNCTION",
        help="a function of Python, called with the request; it returns the reply",
    )  # fmt: skip
    parser.add_argument(
        "--rows-of", metavar="TOPIC",
        help="answer questions (`headwater rpc ask`) about a topic: the function gets the rows of a"
        " partition, and the question",
    )  # fmt: skip
    parser.add_argument(
        "-j", "--concurrency", metavar="N", type=whole_number(1, 10_000), default=8,
        help="requests that run at the same time (8)",
    )  # fmt: skip
    broker_options(parser)


def _serve(args: argparse.Namespace) -> int:
    from headwater.rpc import api
    from headwater.rpc.owned_rows import OwnedRows
    from headwater.rpc.server import Server
    from headwater.rpc.work import command_handler, handler_of

    if (args.shell_command is None) == (args.function is None):
        raise UsageError("one of --command and --function says what serves")
    if args.concurrency < 1:
        raise UsageError("--concurrency is at least 1")
    loaded = load_config(args)
    bootstrap, login = loaded.bootstrap(), loaded.client
    if args.rows_of is not None:
        if args.function is None:
            raise UsageError("--rows-of needs a --function")
        rows = OwnedRows(bootstrap, login, args.rows_of)
        server = Server(
            bootstrap, login, args.name, rows.handler(_function(args.function)),
            concurrency=args.concurrency, rows=rows,
        )  # fmt: skip
    else:
        handler = (
            command_handler(_words(args.shell_command))
            if args.function is None
            else handler_of(_function(args.function))
        )
        server = Server(bootstrap, login, args.name, handler, concurrency=args.concurrency)

    def ready(_: list[Server]) -> None:
        if args.json:
            print_json({"name": args.name, "partitions": server.partitions})
            sys.stdout.flush()
        else:
            note(f"{args.name} is served, for the broker at {bootstrap}")

    api.run_servers([server], ready)
    if not args.json:
        note(f"{server.executed} requests were executed, {server.skipped} were not: nobody waited")
    return 0


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError("--command cannot be read", detail=str(error)) from None
    if not words:
        raise UsageError("--command is empty")
    return words


def _function(text: str) -> Any:
    module, _, name = text.partition(":")
    if not module or not name:
        raise UsageError(f"--function {text}", hint="it is of the form MODULE:FUNCTION")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise UsageError(f"--function {text}", detail=str(error)) from None
    except AttributeError:
        raise UsageError(f"module {module} has no function {name}") from None


COMMANDS = {
    "call": Command(
        "call a service, and print its reply; exit code 3 if there is none in time",
        _configure_id,
        _call,
        "  headwater rpc call price '{\"item\": 7}'\n"
        "  headwater rpc call price - --timeout 2s < request.json",
    ),
    "ask": Command(
        "ask all partitions of a topic that a service answers for, and print the answers",
        _configure_call,
        _ask,
        "  headwater rpc ask reach '\"https://shop.example/sale\"'",
    ),
    "serve": Command(
        "serve requests, in the foreground until SIGINT or SIGTERM",
        _configure_serve,
        _serve,
        "  headwater rpc serve price --function prices:price\n"
        "  headwater rpc serve thumbnail --command 'python thumbnail.py' -j 2\n"
        "  headwater rpc serve reach --rows-of visits --function reach:count",
    ),
}
