"""`headwater subject list | rotate | allow | public-key`: the keys of subjects."""

import argparse

from headwater import config
from headwater.cli.erasure import open_key_store, subject_of
from headwater.cli.parser import Command, Parser, common_options
from headwater.errors import UsageError
from headwater.subjects.receipts import public_text
from headwater.terminal.output import count, note, plural, print_json, say, table


def _configure(parser: Parser) -> None:
    common_options(parser)


def _configure_allow(parser: Parser) -> None:
    parser.add_argument("subject", metavar="KIND:ID", help="a subject that was erased")
    common_options(parser)


def _list(args: argparse.Namespace) -> int:
    loaded = config.load(path=args.config)
    store = open_key_store(loaded)
    counts = dict.fromkeys(loaded.subject_kinds, (0, 0)) | store.counts()
    store.close()
    if args.json:
        print_json(
            [
                {"kind": kind, "subjects": keys, "erased": erased}
                for kind, (keys, erased) in sorted(counts.items())
            ]
        )
    elif counts:
        rows = [(kind, count(keys), count(erased)) for kind, (keys, erased) in counts.items()]
        say(table(("kind", "subjects", "erased"), sorted(rows)))
    else:
        note("no subjects yet; a section [subject.NAME] in headwater.toml makes a kind")
    return 0


def _rotate(args: argparse.Namespace) -> int:
    store = open_key_store(config.load(path=args.config))
    wrapped = store.rotate()
    store.close()
    if args.json:
        print_json({"wrapped": wrapped})
    else:
        say(
            f"{plural(wrapped, 'key')} wrapped by a new root key and a new wrapping key; back up"
            " the key store and the root key again"
        )
    return 0


def _allow(args: argparse.Namespace) -> int:
    loaded = config.load(path=args.config)
    subject = subject_of(loaded, args.subject)
    store = open_key_store(loaded)
    is_changed = store.allow(subject.kind, store.subject_hash(subject.kind, subject.id))
    store.close()
    if not is_changed:
        raise UsageError(f"{subject} was not erased")
    if args.json:
        print_json({"subject": args.subject})
    else:
        say(f"{subject} gets a new key with its next record; what was erased stays so")
    return 0


def _public_key(args: argparse.Namespace) -> int:
    store = open_key_store(config.load(path=args.config))
    key = public_text(store.signing_key().public_key())
    store.close()
    if args.json:
        print_json({"algorithm": "ed25519", "public_key": key})
    else:
        say(key)
    return 0


COMMANDS = {
    "list": Command(
        "kinds of subjects, with the number of keys and of erased subjects",
        _configure,
        _list,
        "  headwater subject list",
    ),
    "rotate": Command(
        "wrap all keys again, by new root and wrapping keys; values stay as they are",
        _configure,
        _rotate,
        "  headwater subject rotate",
    ),
    "allow": Command(
        "allow keys again for a subject that was erased",
        _configure_allow,
        _allow,
        "  headwater subject allow customer:42",
    ),
    "public-key": Command(
        "print the public key that checks receipts",
        _configure,
        _public_key,
        "  headwater subject public-key",
    ),
}
