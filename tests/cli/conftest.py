"""The real command in processes, against a real broker. In the quick tier those that end by
themselves are forks of one that has imported the command line; what changes the environment, and
all in the full tier, is started.

HEADWATER_TEST_BOOTSTRAP=HOST:PORT runs the same suite against another broker (Apache Kafka).
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.cli.forked_commands import ForkedCommands
from support.polling import polled
from support.readable import readable
from tiers import IS_FULL

COMMAND = [sys.executable, "-m", "headwater.cli.main"]
TIMEOUT_S = 60.0
_names = itertools.count(1)


def environment(**settings):
    """This process's, without its own settings."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")
    }
    return inherited | settings


def read_line(source, timeout_s=TIMEOUT_S):
    """The next line of a process's stdout, or of a pipe (opened with bufsize=0); "" at its end."""
    stream = source.stdout if isinstance(source, subprocess.Popen) else source
    line = b""
    deadline_s = time.monotonic() + timeout_s
    while not line.endswith(b"\n"):
        left_s = deadline_s - time.monotonic()
        assert readable(stream, timeout_s=max(0.0, left_s)), (
            f"no whole line within {timeout_s} s, only {line!r}"
        )
        byte = stream.read(1)
        if not byte:
            break
        line += byte
    return line.decode()


def wait_until(condition, timeout_s=TIMEOUT_S):
    assert polled(condition, timeout_s, pause_s=0.05), "it did not come true in time"


@contextmanager
def running_broker(data_dir, *options):
    """A broker process and what it said when it was ready. It has stopped well at the end."""
    process = subprocess.Popen(
        [*COMMAND, "broker", "--listen", "127.0.0.1:0", "--data-dir", str(data_dir), "--json",
         *options],
        stdout=subprocess.PIPE,
        bufsize=0,
        env=environment(),
        cwd=data_dir,
    )  # fmt: skip
    try:
        line = read_line(process)
        assert line, f"the broker ended with {process.wait()}"
        yield process, json.loads(line)
    except BaseException:
        process.kill()
        raise
    finally:
        process.terminate()
        code = process.wait(TIMEOUT_S)
        process.stdout.close()
    assert code == 0


def stop(process, number=signal.SIGTERM):
    process.send_signal(number)
    return process.wait(TIMEOUT_S)


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory):
    """The address of a broker."""
    given = os.environ.get("HEADWATER_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    with running_broker(tmp_path_factory.mktemp("broker")) as (_, ready):
        yield ready["listen"]


def _is_ours(variable):
    """Whether a command reads it when it runs, and not Python or a library when it starts."""
    return variable.startswith("HEADWATER_")


class Cli:
    """Runs `headwater …` with the broker in its environment."""

    def __init__(self, bootstrap, cwd, forked=None):
        self.bootstrap = bootstrap
        self.cwd = cwd
        self._forked = forked
        self.environment = environment(HEADWATER_BROKER__BOOTSTRAP=bootstrap)
        self._started = []

    def __call__(self, *args, stdin=b"", code=0, **settings):
        """Its stdout as text; fails unless it ends with `code` (None: with whatever)."""
        return self.result(*args, stdin=stdin, code=code, **settings).stdout.decode()

    def json(self, *args, **options):
        return json.loads(self(*args, "--json", **options))

    def error(self, *args, code=1, **options):
        """Its stderr as text."""
        return self.result(*args, code=code, **options).stderr.decode()

    def result(self, *args, stdin=b"", code=0, **settings):
        arguments = list(map(str, args))
        given = stdin.encode() if isinstance(stdin, str) else stdin
        if self._forked is None or IS_FULL or not all(map(_is_ours, settings)):
            result = subprocess.run(
                [*COMMAND, *arguments],
                input=given,
                capture_output=True,
                timeout=TIMEOUT_S,
                env=self.environment | settings,
                cwd=self.cwd,
                check=False,
            )
        else:
            result = self._forked.run(
                arguments,
                stdin=given,
                cwd=self.cwd,
                environment=self.environment | settings,
                timeout_s=TIMEOUT_S,
            )
        said = (result.stdout[-2000:], result.stderr.decode()[-2000:])
        assert code in (None, result.returncode), said
        return result

    def start(self, *args):
        """A running command with pipes on all sides."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [*COMMAND, *map(str, args)],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            bufsize=0,
            env=self.environment,
            cwd=self.cwd,
        )
        self._started.append(process)
        return process

    def close(self):
        for process in self._started:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                stream.close()


@pytest.fixture(scope="session")
def forked_commands():
    commands = ForkedCommands()
    yield commands
    commands.close()


@pytest.fixture
def cli(bootstrap, tmp_path, forked_commands):
    cli = Cli(bootstrap, tmp_path, forked_commands)
    yield cli
    cli.close()


@pytest.fixture
def offline(tmp_path, forked_commands):
    """Commands that need no broker."""
    cli = Cli("127.0.0.1:1", tmp_path, forked_commands)
    cli.environment = environment()
    yield cli
    cli.close()


def unique(prefix):
    return f"{prefix}-{os.getpid()}-{time.time_ns() % 10**9}-{next(_names)}"


class Setup:
    """Prepares what a test begins with, in this process: quicker than by commands."""

    def __init__(self, bootstrap):
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self._producer = Producer({"bootstrap.servers": bootstrap})

    def topic(self, prefix="topic"):
        """A new topic with one partition. It retains records with old timestamps."""
        name = unique(prefix)
        new = NewTopic(name, num_partitions=1, config={"retention.ms": "-1"})
        self.admin.create_topics([new])[name].result(TIMEOUT_S)
        return name

    def ten(self):
        """A topic with the values 0 to 9, one second apart from a fixed time."""
        topic = self.topic()
        for number in range(10):
            self._producer.produce(topic, str(number), timestamp=1_700_000_000_000 + number * 1000)
        assert self._producer.flush(TIMEOUT_S) == 0
        return topic

    def produce(self, topic, *values):
        for value in values:
            self._producer.produce(topic, value)
        assert self._producer.flush(TIMEOUT_S) == 0

    def commit(self, group, topic, offset):
        partitions = [TopicPartition(topic, 0, offset)]
        request = ConsumerGroupTopicPartitions(group, partitions)
        self.admin.alter_consumer_group_offsets([request])[group].result(TIMEOUT_S)


@pytest.fixture(scope="session")
def setup(bootstrap):
    return Setup(bootstrap)


@pytest.fixture
def topic(setup):
    return setup.topic()


@pytest.fixture
def ten(setup):
    return setup.ten()


@pytest.fixture
def group():
    return unique("group")
