"""`headwater acl add | list | remove`: access control lists."""

import argparse
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from headwater.broker.security.acls import CLUSTER_NAME
from headwater.cli.arguments import cluster_of
from headwater.cli.commands.log.topic import confirmed
from headwater.cli.parser import Command, Parser, client_options
from headwater.errors import RequestRefused, UsageError
from headwater.inspect.access import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    ShownAcl,
    acls_of,
    written,
)
from headwater.inspect.kafka_cluster import REQUEST_TIMEOUT_S, settled
from headwater.protocol.messages.describe_acls import DescribeAclsRequest
from headwater.terminal.output import note, plural, print_json, say, table

_OPERATIONS: Final = {
    operation.name.lower().replace("_", "-"): operation
    for operation in list(AclOperation)[AclOperation.ALL.value :]
}


class Resource(NamedTuple):
    """What an ACL is about. confluent_kafka calls the cluster BROKER."""

    kind: Any
    name: str | None


def _operations(text: str) -> list[Any]:
    operations = []
    for name in text.lower().replace("_", "-").split(","):
        if name not in _OPERATIONS:
            raise argparse.ArgumentTypeError(
                f"{name!r} is no operation; there are {', '.join(_OPERATIONS)}"
            )
        operations.append(_OPERATIONS[name])
    return operations


def _principal(user: str) -> str:
    """Takes alice for User:alice."""
    return user if ":" in user else f"User:{user}"


def _resource_options(parser: Parser) -> None:
    for option, text in (
        ("topic", "a topic; * means every one"),
        ("group", "a group; * means every one"),
        ("transactional-id", "a transactional id; * means every one"),
    ):
        parser.add_argument(f"--{option}", metavar="NAME", action="append", default=[], help=text)
    parser.add_argument("--cluster", action="store_true", help="the cluster as a whole")


def _change_options(parser: Parser) -> None:
    parser.add_argument("user", metavar="USER", help="name of a user; * means every user")
    parser.add_argument(
        "--allow", metavar="OPERATION[,...]", type=_operations, help=", ".join(_OPERATIONS)
    )
    parser.add_argument(
        "--deny", metavar="OPERATION[,...]", type=_operations, help="the same; a denial overrides"
    )
    parser.add_argument(
        "--producer",
        action="store_true",
        help="all rights to write to the topics, in transactions if an id is given",
    )
    parser.add_argument(
        "--consumer", action="store_true", help="all rights to read the topics as the groups"
    )
    _resource_options(parser)
    parser.add_argument(
        "--prefix", action="store_true", help="the names are prefixes of resource names"
    )
    parser.add_argument(
        "--host", metavar="ADDRESS", default="*", help="only from this address (default: any)"
    )


def _configure_add(parser: Parser) -> None:
    _change_options(parser)
    client_options(parser)


def _configure_remove(parser: Parser) -> None:
    _change_options(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for a confirmation")
    client_options(parser)


def _configure_list(parser: Parser) -> None:
    parser.add_argument("user", metavar="USER", nargs="?", help="only the ACLs of this user")
    _resource_options(parser)
    client_options(parser, json_help="write JSON, for machines")


def _resources(args: argparse.Namespace) -> list[Resource]:
    named = [
        *(Resource(AclResourceType.TOPIC, name) for name in args.topic),
        *(Resource(AclResourceType.GROUP, name) for name in args.group),
        *(Resource(AclResourceType.TRANSACTIONAL_ID, name) for name in args.transactional_id),
    ]
    return [*named, Resource(AclResourceType.BROKER, CLUSTER_NAME)] if args.cluster else named


def _meant(args: argparse.Namespace) -> list[Any]:
    """The ACLs that `add` makes and `remove` takes back."""
    resources = _resources(args)
    if not resources:
        raise UsageError("name a resource: --topic, --group, --transactional-id or --cluster")
    wanted = [
        *(
            (resource, operation, AclPermission.ALLOW)
            for resource in resources
            for operation in args.allow or ()
        ),
        *(
            (resource, operation, AclPermission.DENY)
            for resource in resources
            for operation in args.deny or ()
        ),
        *((*right, AclPermission.ALLOW) for right in _of_roles(args)),
    ]
    if not wanted:
        raise UsageError("name the rights: --allow, --deny, --producer or --consumer")
    return [
        AclBinding(
            resource.kind,
            resource.name,
            AclPatternType.PREFIXED
            if args.prefix and resource.kind is not AclResourceType.BROKER and resource.name != "*"
            else AclPatternType.LITERAL,
            _principal(args.user),
            args.host,
            operation,
            permission,
        )
        for resource, operation, permission in dict.fromkeys(wanted)
    ]


def _of_roles(args: argparse.Namespace) -> Iterable[tuple[Resource, Any]]:
    """What a producer and a consumer ask the broker for. READ and WRITE allow DESCRIBE, too."""
    topics = [Resource(AclResourceType.TOPIC, name) for name in args.topic]
    if (args.producer or args.consumer) and not topics:
        raise UsageError("--producer and --consumer are about topics: --topic NAME")
    if args.consumer and not args.group:
        raise UsageError("--consumer needs the group as well: --group NAME, or * for every one")
    if args.producer:
        yield from ((topic, AclOperation.WRITE) for topic in topics)
        for name in args.transactional_id:
            yield Resource(AclResourceType.TRANSACTIONAL_ID, name), AclOperation.WRITE
    if args.consumer:
        yield from ((topic, AclOperation.READ) for topic in topics)
        for name in args.group:
            yield Resource(AclResourceType.GROUP, name), AclOperation.READ


def _add(args: argparse.Namespace) -> int:
    acls = _meant(args)
    cluster = cluster_of(args)
    futures = cluster.admin.create_acls(acls, request_timeout=REQUEST_TIMEOUT_S)
    settled(_named(futures), "add")
    _show(args, map(_shown, acls))
    return 0


def _remove(args: argparse.Namespace) -> int:
    wanted = _meant(args)
    cluster = cluster_of(args)
    if not args.yes and not confirmed(f"remove {plural(len(wanted), 'ACL')}?"):
        note("nothing was removed")
        return 1
    filters = [
        AclBindingFilter(
            binding.restype, binding.name, binding.resource_pattern_type, binding.principal,
            binding.host, binding.operation, binding.permission_type,
        )
        for binding in wanted
    ]  # fmt: skip
    futures = cluster.admin.delete_acls(filters, request_timeout=REQUEST_TIMEOUT_S)
    removed = [acl for found in settled(_named(futures), "remove").values() for acl in found]
    if not removed:
        raise RequestRefused(
            "there is no such ACL", hint="`headwater acl list` shows those that there are"
        )
    _show(args, map(_shown, removed))
    return 0


def _list(args: argparse.Namespace) -> int:
    cluster = cluster_of(args)
    user = None if args.user is None else _principal(args.user)
    found: dict[ShownAcl, None] = {}
    for kind, name in _resources(args) or [Resource(AclResourceType.ANY, None)]:
        # MATCH: all that have a say on a resource of that name, also those of prefixes and of *.
        pattern = AclPatternType.ANY if name is None else AclPatternType.MATCH
        request = DescribeAclsRequest(
            resource_type_filter=kind.value,
            resource_name_filter=name,
            pattern_type_filter=pattern.value,
            principal_filter=user,
            host_filter=None,
            operation=AclOperation.ANY.value,
            permission_type=AclPermission.ANY.value,
        )
        found.update(dict.fromkeys(acls_of(cluster, request)))
    if not found and not args.json:
        note("no ACLs; `headwater acl add USER …` makes one")
    else:
        _show(args, found)
    return 0


def _show(args: argparse.Namespace, acls: Iterable[ShownAcl]) -> None:
    shown = sorted(acls)
    if args.json:
        print_json([acl._asdict() for acl in shown])
    else:
        say(table(ShownAcl._fields, shown))


def _shown(acl: Any) -> ShownAcl:
    return ShownAcl(
        acl.principal,
        written(acl.permission_type),
        written(acl.operation),
        "cluster" if acl.restype is AclResourceType.BROKER else written(acl.restype),
        written(acl.resource_pattern_type),
        acl.name,
        acl.host,
    )


def _named(futures: Mapping[Any, Any]) -> dict[str, Any]:
    """The futures by what they are about, in words that an error can use."""
    return {f"the ACL: {' '.join(_shown(acl))}": future for acl, future in futures.items()}


COMMANDS: Final = {
    "add": Command(
        "allow or deny operations of a user",
        _configure_add,
        _add,
        """\
  headwater acl add alice --producer --topic orders
  headwater acl add billing --consumer --topic orders --group billing
  headwater acl add ops --allow create,delete,alter-configs --topic team- --prefix
  headwater acl add '*' --deny all --topic secrets --host 10.0.0.7
""",
    ),
    "list": Command(
        "list ACLs, all or those that apply to a resource",
        _configure_list,
        _list,
        "  headwater acl list\n  headwater acl list alice --topic orders\n",
    ),
    "remove": Command(
        "remove ACLs, given with the same options as for add",
        _configure_remove,
        _remove,
        "  headwater acl remove alice --producer --topic orders --yes\n",
    ),
}
