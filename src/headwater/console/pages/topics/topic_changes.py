"""Creating and deleting topics, and writing a record: each asks before it does."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.client import login as client_login
from headwater.client.topics import NewTopic, delete_topic, ensure_topics
from headwater.console.pages.topics.overview import command_for, existing
from headwater.console.web.access import Access
from headwater.console.web.paging import whole
from headwater.console.web.rendering import Question, ask, both, confirmed, seen, shown
from headwater.errors import BrokerUnreachable, RequestRefused, UsageError
from headwater.inspect.record_json import Record, parse_record
from headwater.inspect.topic_configs import configs_of
from headwater.terminal.output import plural
from headwater.web.listener import require_listener
from headwater.web.login_access import PATIENCE_S

_MOST_PARTITIONS: Final = 10_000
_SENT_WITHIN_S: Final = 20.0
_DETAIL_CHARACTERS: Final = 400


# Create


async def _new(request: Request) -> Response:
    return shown(request, "new_topic.html", {"fields": ["name", "partitions", "configs"]})


async def _create(request: Request) -> Response:
    access: Access = request.app.state.console.access(request)
    form = request.state.form
    name = str(form.get("name", "")).strip()
    text = str(form.get("partitions", "1")).strip()
    if not name:
        raise UsageError("a topic needs a name")
    if not 1 <= whole(text, 0) <= _MOST_PARTITIONS:
        raise UsageError(
            f"no number of partitions: {text}", hint=f"a whole number from 1 to {_MOST_PARTITIONS}"
        )
    configs = _configs(str(form.get("configs", "")))
    if name in (await access.topics()).topics:
        raise RequestRefused(f"topic {name} exists already")
    if not confirmed(request):
        settings = ", ".join(f"{key}={value}" for key, value in configs.items())
        detail = f"With {plural(int(text), 'partition')}" + (
            f" and {settings}." if settings else "."
        )
        return ask(
            request, Question(f"Create topic {name}?", "Create it", detail, back="/new-topic")
        )
    topic = NewTopic(name, int(text), configs)

    def create() -> None:
        require_listener(access.bootstrap)
        ensure_topics(access.bootstrap, access.login, [topic], patience_s=PATIENCE_S)

    await access.call(create)
    access.shared.forget("topics")
    return seen(f"/topics/{name}/")


def _configs(text: str) -> dict[str, str]:
    pairs = []
    for line in filter(None, map(str.strip, text.splitlines())):
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"no config: {line}", hint="one per line, for example retention.ms=7d")
        pairs.append((key.strip(), value.strip()))
    return configs_of(pairs)


# Delete


async def _delete(request: Request) -> Response:
    access: Access = request.app.state.console.access(request)
    topic = await existing(access, request.path_params["topic"])
    if not confirmed(request, type_name=topic.name):
        question = Question(
            f"Delete topic {topic.name}?",
            "Delete it permanently",
            f"{plural(topic.records, 'record')} in {plural(len(topic.partitions), 'partition')}"
            " will be deleted. This cannot be undone.",
            type_name=topic.name,
            is_dangerous=True,
            back=f"/topics/{topic.name}/",
        )
        return ask(request, question)

    def delete() -> None:
        require_listener(access.bootstrap)
        delete_topic(access.bootstrap, access.login, topic.name, patience_s=PATIENCE_S)

    await access.call(delete)
    access.shared.forget("topics")
    return seen("/topics")


# Produce


async def _produce_form(request: Request) -> Response:
    access: Access = request.app.state.console.access(request)
    topic = await existing(access, request.path_params["topic"])
    data = {"topic": topic.name, "partitions": len(topic.partitions)}
    return shown(
        request, "produce.html", data, tab="produce", command=_command(request, topic.name)
    )


def _command(request: Request, topic: str) -> str:
    line = """echo '{"key": "7", "value": "hello"}' | headwater produce """ + topic
    return command_for(request, f"{line} --json --echo")


async def _produce(request: Request) -> Response:
    access: Access = request.app.state.console.access(request)
    topic = await existing(access, request.path_params["topic"])
    record = _record(request.state.form)
    if record.partition is not None and record.partition >= len(topic.partitions):
        raise UsageError(f"topic {topic.name} has no partition {record.partition}")
    if not confirmed(request):
        value = "null (a tombstone)" if record.value is None else _shortened(record.value)
        key = "no key" if record.key is None else f"the key {_shortened(record.key)}"
        question = Question(
            f"Write a record to {topic.name}?",
            "Write it",
            f"With {key} and the value {value}. What is written cannot be taken back.",
            back=f"/topics/{topic.name}/produce",
        )
        return ask(request, question)
    partition, offset = await access.call(send, access, topic.name, record)
    access.shared.forget("topics")
    return seen(f"/topics/{topic.name}/records/{partition}/{offset}/")


def _record(form: Any) -> Record:
    """Raises UsageError. Headers are lines of NAME=VALUE."""
    partition = str(form.get("partition", "")).strip()
    if partition and not (partition.isascii() and partition.isdigit() and len(partition) < 10):
        raise UsageError(f"no partition: {partition}")
    headers = []
    for line in filter(str.strip, str(form.get("headers", "")).splitlines()):
        name, equals, rest = line.partition("=")
        if not equals:
            raise UsageError(f"no header: {line}", hint="one per line, for example source=console")
        headers.append((name.strip(), rest.encode()))
    # A form's lines end as the network's do; a record's as they were typed.
    value = str(form.get("value", "")).replace("\r\n", "\n").encode()
    key = str(form.get("key", ""))
    if form.get("kind") == "json" and value:
        parse_record(b'{"value":' + value + b"}")
    return Record(
        None if form.get("key_is_null") == "1" else key.encode(),
        None if form.get("kind") == "null" else value,
        headers,
        int(partition) if partition else None,
        None,
    )


def _shortened(data: bytes) -> str:
    text = data.decode(errors="replace")
    return text if len(text) <= _DETAIL_CHARACTERS else f"{text[:_DETAIL_CHARACTERS]}…"


def send(access: Access, topic: str, record: Record) -> tuple[int, int]:
    """Writes it with acks of all; its partition and offset. Raises RequestRefused,
    BrokerUnreachable.
    """
    from confluent_kafka import KafkaException

    from headwater.inspect.kafka_cluster import KafkaCluster, refused

    require_listener(access.bootstrap)
    cluster = KafkaCluster(access.bootstrap, client_login.properties_of(access.login))
    producer: Any = cluster.producer(
        {
            # Sent once: a second attempt might write it twice, and being sure of that takes a right
            # that not every user has.
            "message.send.max.retries": 0,
            "message.timeout.ms": int(_SENT_WITHIN_S * 1000),
        }
    )
    outcome: list[tuple[Any, Any]] = []
    what = f"the record is not written to {topic}"
    try:
        producer.produce(
            topic,
            record.value,
            record.key,
            -1 if record.partition is None else record.partition,
            headers=list(record.headers),
            on_delivery=lambda error, message: outcome.append((error, message)),
        )
        producer.flush(_SENT_WITHIN_S + 5)
    except (KafkaException, BufferError) as error:
        raise refused(error, what) from error
    if not outcome:
        raise BrokerUnreachable(what, detail="no answer in time; it may be written all the same")
    failure, message = outcome[0]
    if failure is not None:
        raise refused(failure, what)
    return message.partition(), message.offset()


ROUTES: Final = [
    Route("/new-topic", _create, methods=["POST"]),
    *both("/new-topic", _new),
    Route("/topics/{topic}/delete", _delete, methods=["POST"]),
    Route("/topics/{topic}/produce", _produce, methods=["POST"]),
    *both("/topics/{topic}/produce", _produce_form),
]
