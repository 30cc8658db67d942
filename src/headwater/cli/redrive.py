"""`headwater queue redrive`: moves dead letters back to their topic, exactly once.

    <topic>.dlq ──▶ one transaction: the records into <topic>, and how far that is ──▶ next

How far it is, is committed for the group `headwater.redrive.<topic>` in the same transaction as
the records. So an interrupted redrive, or a crash, neither loses nor repeats a letter; running it
again goes on. Two at once: the later one takes over, the earlier one is fenced (transactional id).

A position can only stand for all letters in front of it. Those in front of the last wanted one that
are not wanted (--group, --cause) therefore move to the end of the dead letters, in the same
transaction.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from headwater.cli.arguments import cluster_of
from headwater.cli.parser import Command, Parser, client_options, whole_number
from headwater.errors import NotReady, RequestRefused
from headwater.inspect.kafka_cluster import KafkaCluster, Partition, refused
from headwater.inspect.share_groups import (
    DEAD_LETTERS_SUFFIX,
    REDRIVE_GROUP_PREFIX,
    redriven_until,
)
from headwater.terminal.interrupt import Interrupt
from headwater.terminal.output import count, note, plural, print_json, say, table
from headwater.terminal.progress import ProgressBar, shows_progress

HEADER_PREFIX: Final = "headwater.dlq."
COUNT_HEADER: Final = "headwater.redrive.count"
_BATCH: Final = 1_000  # letters in a transaction …
_BATCH_BYTES: Final = 16 << 20  # … and their bytes, about
_POLL_S: Final = 0.5
_SILENCE_POLLS: Final = 60  # then the broker counts as unreachable
_TRANSACTION_TIMEOUT_S: Final = 30.0


@dataclass(slots=True)
class Plan:
    """What is to be done: counted before anything is."""

    begins: dict[Partition, int]
    ends: dict[Partition, int]  # behind the last letter that is wanted
    causes: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0

    @property
    def wanted(self) -> int:
        return self.causes.total()


def _configure(parser: Parser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="topic whose dead letters go back to it")
    parser.add_argument("-g", "--group", metavar="QUEUE", help="only letters of this queue")
    parser.add_argument("--cause", metavar="TEXT", help="only letters whose cause contains TEXT")
    parser.add_argument(
        "-n",
        "--max",
        type=whole_number(1, 10**12),
        metavar="N",
        help="at most N letters, the oldest of each partition first",
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    client_options(parser)


def _run(args: argparse.Namespace) -> int:
    cluster = cluster_of(args)
    topic = args.topic.removesuffix(DEAD_LETTERS_SUFFIX)
    dlq = topic + DEAD_LETTERS_SUFFIX
    if dlq not in cluster.topics():
        raise RequestRefused(
            f"{topic} has no dead letters",
            detail=f"there is no topic {dlq}",
            hint="`headwater queue list` shows the queues and their dead letters",
        )
    target = cluster.existing([topic])[topic]
    interrupted = Interrupt()
    redrive = _Redrive(cluster, args, topic, dlq, len(target.partitions), interrupted)
    try:
        plan = redrive.plan()
        done = 0 if args.dry_run or not plan.wanted else redrive.run(plan)
    finally:
        redrive.close()
    return _report(args, topic, plan, done, is_interrupted=bool(interrupted))


def _report(
    args: argparse.Namespace, topic: str, plan: Plan, done: int, *, is_interrupted: bool
) -> int:
    if args.json:
        print_json(
            {
                "topic": topic,
                "dry_run": args.dry_run,
                "wanted": plan.wanted,
                "redriven": done,
                "causes": dict(plan.causes),
                "unreadable": plan.unreadable,
            }
        )
    else:
        if plan.causes:
            rows = [(cause, count(n)) for cause, n in plan.causes.most_common()]
            say(table(("cause", ">letters"), rows))
        if plan.unreadable:
            letters = plural(plan.unreadable, "letter")
            note(f"{letters} were not moved: the original record is damaged")
        if args.dry_run:
            note("nothing was moved (--dry-run)")
        else:
            say(f"redrove {plural(done, 'record')} to {topic}")
    if is_interrupted:
        note("interrupted; run it again to continue")
        return 130
    return 0


class _Redrive:
    def __init__(
        self,
        cluster: KafkaCluster,
        args: argparse.Namespace,
        topic: str,
        dlq: str,
        target_partitions: int,
        interrupted: Interrupt,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._dlq = dlq
        self._target_partitions = target_partitions
        self._group: str | None = args.group
        self._cause: str | None = args.cause
        self._max: int | None = args.max
        self._quiet = not shows_progress(args)
        self._interrupted = interrupted
        self._consumer: Consumer = cluster.consumer(
            {
                "group.id": REDRIVE_GROUP_PREFIX + topic,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            }
        )
        self._producer: Producer | None = None

    def close(self) -> None:
        self._consumer.close()

    def plan(self) -> Plan:
        """Reads the letters that wait, and counts."""
        partitions = [Partition(self._dlq, n) for n in self._cluster.topics()[self._dlq].partitions]
        bounds = self._cluster.bounds(partitions, committed_only=True)
        if len(bounds) < len(partitions):
            raise NotReady(f"{self._dlq} cannot be read", detail="a partition has no leader")
        redriven = redriven_until(self._cluster, {self._topic: partitions})
        begins = {
            partition: max(bounds[partition][0], redriven.get(partition, 0))
            for partition in partitions
        }
        plan = Plan(begins, dict(begins))
        for letter in self._letters(
            begins, {partition: bounds[partition][1] for partition in partitions}
        ):
            about = dict(letter.headers() or ())
            if HEADER_PREFIX + "error" in about:
                plan.unreadable += 1
            elif self._wants(about) and (self._max is None or plan.wanted < self._max):
                plan.causes[_text(about, "cause")] += 1
                plan.ends[Partition(self._dlq, letter.partition())] = letter.offset() + 1
        return plan

    def run(self, plan: Plan) -> int:
        """Moves the letters, some in each transaction. How many went back to their topic."""
        producer = self._producer = self._cluster.producer(
            {
                "transactional.id": REDRIVE_GROUP_PREFIX + self._topic,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.max.bytes": 1_000_000_000,  # the broker knows how large one may be
            }
        )
        doing = f"redriving {self._topic}"
        done = 0
        try:
            producer.init_transactions(_TRANSACTION_TIMEOUT_S)
            # Another redrive may have come further since the plan was made; its last transaction
            # has ended now, one way or the other.
            begins = dict(plan.begins)
            for partition, at in redriven_until(self._cluster, {self._topic: list(begins)}).items():
                begins[partition] = max(begins[partition], at)
            left = {
                partition: end for partition, end in plan.ends.items() if end > begins[partition]
            }
            progress = ProgressBar(doing, total=plan.wanted, quiet=self._quiet)
            try:
                letters = self._letters({partition: begins[partition] for partition in left}, left)
                batch: list[Any] = []
                batch_bytes = 0
                for letter in letters:
                    batch.append(letter)
                    batch_bytes += len(letter.value() or b"") + len(letter.key() or b"")
                    if len(batch) >= _BATCH or batch_bytes >= _BATCH_BYTES:
                        done += self._move(producer, batch)
                        batch, batch_bytes = [], 0
                        progress.update(done, done)
                        if self._interrupted:
                            return done
                if batch:
                    done += self._move(producer, batch)
            finally:
                progress.close()
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH):  # noqa: SLF001
                raise RequestRefused(
                    "another redrive of this topic has taken over",
                    detail=f"{plural(done, 'record')} went back before",
                ) from error
            raise refused(error, f"cannot redrive to {self._topic}") from error
        return done

    def _move(self, producer: Producer, batch: list[Any]) -> int:
        """One transaction: wanted letters to their topic, the others behind all letters."""
        moved = 0
        positions: dict[int, int] = {}
        producer.begin_transaction()
        try:
            for letter in batch:
                about = dict(letter.headers() or ())
                if HEADER_PREFIX + "error" not in about and self._wants(about):
                    self._give_back(producer, letter, about)
                    moved += 1
                else:
                    self._keep(producer, letter)
                positions[letter.partition()] = letter.offset() + 1
            producer.send_offsets_to_transaction(
                [TopicPartition(self._dlq, number, at) for number, at in positions.items()],
                self._consumer.consumer_group_metadata(),
                _TRANSACTION_TIMEOUT_S,
            )
            producer.commit_transaction(_TRANSACTION_TIMEOUT_S)
        except KafkaException as error:
            if not error.args[0].fatal():
                producer.abort_transaction(_TRANSACTION_TIMEOUT_S)
            raise
        return moved

    def _give_back(self, producer: Producer, letter: Any, about: dict[str, bytes]) -> None:
        headers = [
            (name, value)
            for name, value in letter.headers() or ()
            if not name.startswith(HEADER_PREFIX) and name != COUNT_HEADER
        ]
        times = _number(about.get(COUNT_HEADER), 0) + 1
        partition = _number(about.get(HEADER_PREFIX + "partition"), -1)
        if partition >= self._target_partitions:
            partition = -1  # librdkafka's "any": by key
        producer.produce(
            self._topic,
            key=letter.key(),
            value=letter.value(),
            headers=[*headers, (COUNT_HEADER, str(times).encode())],
            partition=partition,
        )

    def _keep(self, producer: Producer, letter: Any) -> None:
        producer.produce(
            self._dlq,
            key=letter.key(),
            value=letter.value(),
            headers=letter.headers() or [],
            partition=letter.partition(),
            timestamp=letter.timestamp()[1],
        )

    def _wants(self, about: dict[str, bytes]) -> bool:
        if self._group is not None and _text(about, "group") != self._group:
            return False
        return self._cause is None or self._cause in _text(about, "cause")

    def _letters(self, begins: dict[Partition, int], ends: dict[Partition, int]) -> Iterator[Any]:
        """The letters from `begins` up to in front of `ends`, partition by partition in order."""
        open_ends = {
            partition.number: end for partition, end in ends.items() if begins[partition] < end
        }
        if not open_ends:
            return
        self._consumer.assign(
            [
                TopicPartition(begin.topic, begin.number, at)
                for begin, at in begins.items()
                if begin.number in open_ends
            ]
        )
        silence = 0
        while open_ends and not self._interrupted:
            message: Any = self._consumer.poll(_POLL_S)
            if message is None:
                silence += 1
                if silence > _SILENCE_POLLS:
                    raise NotReady(f"{self._dlq} cannot be read", detail="the broker is silent")
                continue
            silence = 0
            error = message.error()
            number = message.partition()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                    open_ends.pop(number, None)
                    continue
                raise refused(error, f"cannot read {self._dlq}")
            if number not in open_ends:
                continue
            if message.offset() < open_ends[number]:
                yield message
            if message.offset() + 1 >= open_ends[number]:
                del open_ends[number]
        self._consumer.unassign()


def _text(about: dict[str, bytes], name: str) -> str:
    return (about.get(HEADER_PREFIX + name) or b"").decode("utf-8", "replace")


def _number(text: bytes | None, default: int) -> int:
    try:
        return int(text) if text is not None else default
    except ValueError:
        return default


COMMAND = Command(
    "move dead letters back to the topic that they came from, exactly once",
    _configure,
    _run,
    "  headwater queue redrive orders --dry-run\n"
    "  headwater queue redrive orders --group billing --cause 'delivery count' --max 100",
)
