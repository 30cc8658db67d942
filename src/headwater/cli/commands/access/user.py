"""`headwater user create | passwd | list | delete`: users who may log in.

With `--offline` the users are written into the data directory of a broker that does not run: the
way to the first one, who can then make the others.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable
from typing import Any

from headwater import config
from headwater.broker.security.users import DEFAULT_ITERATIONS, MAX_NAME_CHARACTERS, Users
from headwater.cli.arguments import cluster_of
from headwater.cli.parser import Command, Parser, client_options
from headwater.client.login import read_secret
from headwater.errors import HeadwaterError, RequestRefused, UsageError
from headwater.protocol import scram
from headwater.terminal.output import note, print_json, say, table


class _Online:
    """Users of a running broker, ours or Apache Kafka."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._cluster = cluster_of(args)

    def all(self) -> dict[str, dict[str, int]]:
        """Iterations by mechanism, by user."""
        from headwater.inspect.access import users_of

        return users_of(self._cluster)

    def set_password(self, name: str, password: str) -> None:
        from headwater.inspect.access import set_password

        set_password(self._cluster, name, password)

    def delete(self, name: str) -> None:
        from headwater.inspect.access import delete_user

        delete_user(self._cluster, name)


class _Offline:
    """Users in a data directory that no broker uses at the moment."""

    def __init__(self, args: argparse.Namespace) -> None:
        flags = {"broker.data_dir": args.data_dir}
        self._path = config.load(flags, path=args.config).broker.data_dir

    def all(self) -> dict[str, dict[str, int]]:
        def read(users: Users) -> dict[str, dict[str, int]]:
            return {
                name: {
                    key: credential.iterations
                    for key, credential in users.credentials(name).items()
                }
                for name in users.names()
            }

        return asyncio.run(self._with_users(read))

    def set_password(self, name: str, password: str) -> None:
        credentials: dict[str, scram.Credential | None] = {
            mechanism: scram.new_credential(mechanism, password, DEFAULT_ITERATIONS)
            for mechanism in scram.DIGESTS
        }
        asyncio.run(self._with_users(lambda users: users.put({name: credentials})))

    def delete(self, name: str) -> None:
        deleted: dict[str, scram.Credential | None] = dict.fromkeys(self.all()[name])
        asyncio.run(self._with_users(lambda users: users.put({name: deleted})))

    async def _with_users(self, work: Callable[[Users], Any]) -> Any:
        from headwater.clock import SystemClock
        from headwater.log.store import LogStore

        store = LogStore(self._path, SystemClock())
        store.open()
        users = Users(store)
        try:
            result = work(users)
            return await result if asyncio.iscoroutine(result) else result
        finally:
            users.close()
            await store.close()


def _users(args: argparse.Namespace) -> _Online | _Offline:
    if args.data_dir is not None and not args.offline:
        raise UsageError("--data-dir is of use with --offline only")
    return _Offline(args) if args.offline else _Online(args)


def _configure(parser: Parser) -> None:
    parser.add_argument(
        "--offline",
        action="store_true",
        help="write into the data directory of a broker that does not run",
    )
    parser.add_argument(
        "--data-dir", metavar="DIR", help="that directory (broker.data_dir); with --offline"
    )
    client_options(parser)


def _configure_name(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="the user's name")
    _configure(parser)


def _configure_password(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="the user's name")
    parser.add_argument(
        "--password-file",
        metavar="FILE",
        help="file with the new password; otherwise it is asked for, or read from stdin",
    )
    _configure(parser)


def _configure_delete(parser: Parser) -> None:
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for a confirmation")
    _configure_name(parser)


def _create(args: argparse.Namespace) -> int:
    users = _users(args)
    if not 1 <= len(args.name) <= MAX_NAME_CHARACTERS or "\0" in args.name:
        raise UsageError(f"a name has 1 to {MAX_NAME_CHARACTERS} characters")
    if args.name in users.all():
        raise RequestRefused(
            f"there is a user {args.name} already",
            hint="`headwater user passwd` changes the password",
        )
    users.set_password(args.name, _new_password(args))
    _done(args, f"user {args.name} can log in")
    return 0


def _passwd(args: argparse.Namespace) -> int:
    users = _users(args)
    _require(users, args.name)
    users.set_password(args.name, _new_password(args))
    _done(args, f"the password of {args.name} is changed; connections that are open stay so")
    return 0


def _list(args: argparse.Namespace) -> int:
    found = _users(args).all()
    if args.json:
        print_json([{"user": name, "mechanisms": mechanisms} for name, mechanisms in found.items()])
    elif found:
        say(
            table(
                ("user", "mechanisms"),
                [(name, ", ".join(mechanisms)) for name, mechanisms in found.items()],
            )
        )
    else:
        note("no users yet; `headwater user create NAME` makes one")
    return 0


def _delete(args: argparse.Namespace) -> int:
    from headwater.cli.commands.log.topic import confirmed

    users = _users(args)
    _require(users, args.name)
    if not args.yes and not confirmed(f"delete user {args.name}?"):
        note("nothing was deleted")
        return 1
    users.delete(args.name)
    _done(args, f"user {args.name} is deleted")
    return 0


def _require(users: _Online | _Offline, name: str) -> None:
    if name not in users.all():
        raise RequestRefused(
            f"there is no user {name}", hint="`headwater user list` shows the users"
        )


def _new_password(args: argparse.Namespace) -> str:
    """Never from the command line, which every user of the machine could read."""
    if args.password_file is not None:
        return read_secret(args.password_file, "--password-file")
    if not sys.stdin.isatty():
        password = sys.stdin.readline().rstrip("\r\n")
        if not password:
            raise HeadwaterError("there is no password on stdin")
        return password
    import getpass

    password = getpass.getpass(f"new password of {args.name}: ")
    if not password:
        raise HeadwaterError("nothing was changed: the password is empty")
    if password != getpass.getpass("once more: "):
        raise HeadwaterError("nothing was changed: the two are not the same")
    return password


def _done(args: argparse.Namespace, text: str) -> None:
    if args.json:
        print_json({"user": args.name})
    else:
        note(text)


COMMANDS = {
    "create": Command(
        "create a user who can log in",
        _configure_password,
        _create,
        "  headwater user create admin --offline\n"
        "  headwater user create orders --password-file /run/secrets/orders",
    ),
    "passwd": Command("change a user's password", _configure_password, _passwd),
    "list": Command("list the users", _configure, _list),
    "delete": Command("delete a user", _configure_delete, _delete),
}
