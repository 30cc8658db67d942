"""A pipeline's file: a mistake is reported with its line; a changed file is loaded again."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from unittest import mock

import pytest
from pyspark import cloudpickle

from headwater import config
from headwater.errors import ConfigError, Fenced, PipelineError
from headwater.pipelines.flow import Write
from headwater.pipelines.pipeline import load
from headwater.pipelines.pipeline_file import PipelineFile
from headwater.pipelines.running.environment import Environment
from headwater.pipelines.running.loaded_pipeline import Pipeline
from headwater.pipelines.running.managed_write import ManagedWrite
from headwater.pipelines.running.runner import Runner


@pytest.mark.parametrize(
    ("source", "reported"),
    [
        ("import headwater\n\ndef orders(flow\n", "orders.py:3: '(' was never closed"),
        ("x = 1\nraise RuntimeError('boom')\n", "orders.py:2: RuntimeError: boom"),
        ("import sys\nsys.exit('no setting')\n", "orders.py:2: SystemExit: no setting"),
    ],
)
def test_the_line_is_reported(tmp_path, source, reported):
    (tmp_path / "orders.py").write_text(source)
    (tmp_path / "headwater.toml").write_text('[pipeline.orders]\nfile = "orders.py"\n')
    loaded = config.load(path=str(tmp_path / "headwater.toml"), environ={})
    with pytest.raises(ConfigError) as caught:
        load(loaded.pipelines["orders"], tmp_path)
    assert str(caught.value) == f"pipeline orders: {reported}"
    assert caught.value.exit_code == 2
    assert str(tmp_path / "orders.py") in caught.value.hint


SOURCE = (
    "import headwater as hw\n{imports}\n\n@hw.pipeline\ndef orders(flow):\n    return {value}\n"
)


class Written:
    """A file of a pipeline that returns a value, and what is beside it."""

    def __init__(self, directory):
        self.directory = directory
        self.write("1")
        (directory / "headwater.toml").write_text('[pipeline.orders]\nfile = "orders.py"\n')
        settings = config.load(path=str(directory / "headwater.toml"), environ={}).pipelines
        self.settings = settings["orders"]

    def write(self, value, imports="", name="orders.py"):
        file = self.directory / name
        file.parent.mkdir(exist_ok=True)
        is_pipeline = name == "orders.py"
        file.write_text(SOURCE.format(imports=imports, value=value) if is_pipeline else value)

    def loaded(self):
        return PipelineFile(self.settings, self.directory)


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", sys.path.copy())
    before = set(sys.modules)
    yield Written(tmp_path)
    for name in set(sys.modules) - before:
        del sys.modules[name]


def settled(file):
    """As the runner looks: now, and a moment later."""
    return file.is_changed() or file.is_changed()


def replaced(file):
    with file.replacing() as function:
        return function(None)


def test_a_file_that_has_changed_is_loaded_again(written):
    file = written.loaded()
    assert file.function(None) == 1
    assert not settled(file)
    for value in ("2", "3", "4"):  # as long as each other, within one second
        written.write(value)
        assert settled(file)
        assert replaced(file) == int(value)
        assert file.function(None) == int(value)
        assert not settled(file)


def test_a_file_that_is_still_being_written_is_left_alone(written):
    file = written.loaded()
    for value in ("2", "3", "4"):
        written.write(value)
        assert not file.is_changed()
    assert file.is_changed()


def test_one_that_is_touched_or_taken_back_has_not_changed(written):
    file = written.loaded()
    written.write("2")
    assert settled(file)
    written.write("1")
    assert not settled(file)
    os.utime(written.directory / "orders.py", (1, 1))
    assert not settled(file)
    assert file.is_as_loaded


@pytest.mark.parametrize(
    ("name", "imports", "used"),
    [
        ("beside.py", "import beside", "beside.VALUE"),
        ("beside.py", "from beside import VALUE", "VALUE"),
        ("parts/numbers.py", "from parts.numbers import VALUE", "VALUE"),
        ("parts/numbers.py", "from parts import numbers", "numbers.VALUE"),
        ("parts/inner.py", "from parts.numbers import VALUE", "VALUE"),
        (
            "lazy.py",
            "",
            "__import__('importlib').import_module('lazy').VALUE or 0\n    import lazy",
        ),
    ],
)
def test_a_module_beside_it_counts_as_its_file(written, name, imports, used):
    (written.directory / "parts").mkdir()
    written.write("from .inner import VALUE\n", name="parts/numbers.py")
    written.write("VALUE = 1\n", name=name)
    written.write(used, imports)
    file = written.loaded()
    assert file.function(None) == 1
    for value in (2, 3):
        written.write(f"VALUE = {value}\n", name=name)
        assert settled(file)
        assert replaced(file) == value
    assert not settled(file)


def test_one_that_does_not_load_leaves_what_was_loaded_in_use(written):
    written.write("VALUE = 1\n", name="beside.py")
    written.write("__import__('beside').VALUE", "import beside")
    file = written.loaded()
    written.write("VALUE = 2\nraise RuntimeError('boom')\n", name="beside.py")
    assert settled(file)
    with pytest.raises(ConfigError, match=r"beside\.py:2: RuntimeError: boom"), file.replacing():
        raise AssertionError("not reached")
    assert file.function(None) == 1
    assert not settled(file)  # reported once
    written.write("VALUE = 3\n", name="beside.py")
    assert settled(file)
    assert replaced(file) == 3


def test_one_that_loads_and_is_refused_leaves_what_was_loaded_in_use(written):
    file = written.loaded()
    written.write("2")
    assert settled(file)
    with pytest.raises(PipelineError), file.replacing():
        raise PipelineError("it describes nothing")
    assert file.function(None) == 1
    assert not settled(file)
    written.write("1")
    settled(file)
    assert file.is_as_loaded


def test_one_that_is_removed_and_comes_back(written):
    file = written.loaded()
    source = (written.directory / "orders.py").read_text()
    (written.directory / "orders.py").unlink()
    assert settled(file)
    with pytest.raises(ConfigError, match="there is no file"), file.replacing():
        raise AssertionError("not reached")
    (written.directory / "orders.py").write_text(source)
    assert not settled(file)
    assert file.is_as_loaded


def test_a_write_that_another_process_has_taken_over_stays_there(written):
    """That process reads the same file, and would be fenced in its turn."""

    def describe(flow):
        for table in ("taken", "ours"):
            flow.writes.append(Write(mock.Mock(), "cache", table, (), "append", {}))

    environment = Environment(mock.Mock(), {}, written.directory)
    pipeline = Pipeline(written.settings, describe, environment, mock.Mock())
    runner = Runner([pipeline])
    runner._writes = [
        ManagedWrite(pipeline, "cache/taken", error=Fenced("another one writes"), has_ended=True),
        ManagedWrite(pipeline, "cache/ours", error=PipelineError("boom"), failures=5),
        ManagedWrite(pipeline, "cache/removed"),
    ]
    file = written.loaded()
    written.write("2")
    assert not file.is_changed()  # not before the second look
    with mock.patch.object(file, "replacing", return_value=nullcontext(describe)):
        runner._check_file(pipeline, file)
    assert [(write.name, write.has_ended, write.failures) for write in runner._writes] == [
        ("cache/taken", True, 0),
        ("cache/ours", False, 0),
    ]


def test_functions_describe_one_at_a_time(written):
    """A question is answered in another thread, and views of the session have one name for both."""
    both = threading.Barrier(2)

    def describe(flow):
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)
            return  # they have met: nothing is written, which is refused
        flow.writes.append(Write(mock.Mock(), "cache", "t", (), "append", {}))

    environment = Environment(mock.Mock(), {}, written.directory)
    pipeline = Pipeline(written.settings, describe, environment, mock.Mock())
    with ThreadPoolExecutor(2) as pool:
        flows = list(pool.map(lambda _: pipeline.flow(), range(2)))
    assert [len(flow.writes) for flow in flows] == [1, 1]


@pytest.mark.parametrize("level", ["top", "within"])
def test_workers_get_modules_beside_it_by_value(written, level):
    """They are reused, and would go on with what they have imported."""
    written.write("def doubled(number):\n    return 2 * number\n", name="beside.py")
    if level == "top":
        written.write("doubled", "from beside import doubled")
    else:
        written.write("doubled()", "def doubled():\n    import beside\n    return beside.doubled")
    pickled = cloudpickle.dumps(written.loaded().function(None))
    here = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read())(21))"
    worker = subprocess.run(
        [sys.executable, "-c", here], input=pickled, capture_output=True, check=True, cwd="/"
    )
    assert worker.stdout == b"42\n"
