"""What `headwater erase` and `headwater verify --erased` have in common: the store, and reports."""

import argparse
from pathlib import Path
from typing import Any

import orjson

from headwater import config
from headwater.cli.arguments import load_config
from headwater.erasure.subject import Subject, parse_subject
from headwater.erasure.verifying import verify_erased
from headwater.errors import ReceiptRefused, UsageError
from headwater.inspect.captures import connected
from headwater.subjects.key_store import KeyStore
from headwater.subjects.receipts import check, public_text
from headwater.terminal.output import count, plural, print_json, say, styled
from headwater.terminal.progress import ProgressBar, shows_progress


def subject_of(loaded: config.Config, text: str) -> Subject:
    return parse_subject(text, loaded.subject_kinds)


def open_key_store(loaded: config.Config, *, create: bool = False) -> KeyStore:
    """Raises KeyStoreError. `create`: if there was never one; one that was lost is an error."""
    return KeyStore(loaded.key_places(), create=create)


class SearchProgress:
    """Progress of a search on stderr."""

    def __init__(self, args: argparse.Namespace, doing: str) -> None:
        self._bar = ProgressBar(doing, quiet=not shows_progress(args))

    def __call__(self, records: int, total: int) -> None:
        self._bar.update(records, records)

    def close(self) -> None:
        self._bar.close()


def verify_erased_subject(args: argparse.Namespace) -> int:
    """`headwater verify --erased KIND:ID`: 0 if nothing readable is left, else 3."""
    loaded = load_config(args)
    subject = subject_of(loaded, args.erased)
    store = open_key_store(loaded, create=True)
    connected(loaded)
    progress = SearchProgress(args, f"searching for {subject}")
    try:
        verdict = verify_erased(loaded, store, subject, args.text, progress)
    finally:
        progress.close()
        store.close()
    if args.json:
        print_json(
            {
                "subject": args.erased,
                "is_erased": verdict.is_erased,
                "left": verdict.left,
                "searched": verdict.searched,
            }
        )
    else:
        _show(verdict.left, verdict.searched, str(subject))
    return 0 if verdict.is_erased else 3


def _show(left: list[str], searched: dict[str, Any], subject: str) -> None:
    state = styled("not erased", "bold red") if left else styled("erased", "bold green")
    say(
        f"{state}  {subject}: {count(searched['records'])} records of"
        f" {plural(len(searched['topics']), 'topic')}, {plural(len(searched['stores']), 'store')}"
        f" and {plural(searched['files'], 'file')} were searched"
    )
    for line in left:
        say(f"  {line}")


def check_receipt(args: argparse.Namespace) -> int:
    """`headwater verify --receipt FILE`. Raises ReceiptRefused (exit code 3)."""
    try:
        receipt = orjson.loads(Path(args.receipt).read_bytes())
    except OSError as error:
        raise UsageError(f"{args.receipt} cannot be read", detail=str(error.strerror)) from error
    except ValueError:
        raise ReceiptRefused("this is no receipt of an erasure", detail=args.receipt) from None
    loaded = load_config(args)
    store = open_key_store(loaded)
    try:
        genuine = check(receipt, public_text(store.signing_key().public_key()))
        if args.erased:
            subject = subject_of(loaded, args.erased)
            hashed = store.subject_hash(subject.kind, subject.id).hex()
            if genuine["subject"] != {"kind": subject.kind, "hash": hashed}:
                raise ReceiptRefused(f"the receipt is about another subject than {subject}")
    finally:
        store.close()
    if not args.json:
        say(
            f"{styled('genuine', 'bold green')}  {args.receipt}: erasure {genuine['id']}, ended"
            f" {genuine['ended']}, {plural(len(genuine['keys_dropped']), 'key')} dropped,"
            f" {plural(sum(genuine['records_erased'].values()), 'record')} erased"
        )
    elif not args.erased:
        print_json({"receipt": args.receipt, "is_genuine": True, "id": genuine["id"]})
    return 0
