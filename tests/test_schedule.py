"""Which process runs which files of the suite."""

from types import SimpleNamespace

import pytest
from schedule import FilesScheduling, file_of, uses_spark

WITH_SPARK = ["tests/pipelines/test_cluster.py", "tests/pipelines/test_source.py"]
WITH_KAFKA = ["tests/client/test_tailing.py", "tests/sinks/topic/test_topic_contract.py"]
OTHERS = ["tests/test_config.py", "tests/log/test_recovery.py", "tests/log/test_retention.py"]


class Process:
    shutting_down = False

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.files: list[str] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.files += dict.fromkeys(file_of(TESTS[index]) for index in indices)

    def shutdown(self) -> None:
        self.shutting_down = True


TESTS = [f"{file}::test_{n}" for file in (*OTHERS, *WITH_KAFKA, *WITH_SPARK) for n in range(4)]


@pytest.fixture
def processes(monkeypatch, request):
    """So many, which have done all tests."""
    found = [Process(number) for number in range(request.param)]
    monkeypatch.setattr("xdist.scheduler.loadscope.parse_tx_spec_config", lambda _: found)
    config = SimpleNamespace(option=SimpleNamespace(loadscopereorder=False))
    scheduling = FilesScheduling(config)
    for process in found:
        scheduling.add_node(process)
        scheduling.add_node_collection(process, TESTS)
    scheduling.schedule()
    while scheduling.has_pending:
        for process in found:
            for unit in list(scheduling.assigned_work[process].values()):
                for test in [test for test, is_done in unit.items() if not is_done]:
                    scheduling.mark_test_complete(process, TESTS.index(test))
    return found


@pytest.mark.parametrize("processes", [1, 2, 3, 4], indirect=True)
def test_every_file_is_run_by_one_process(processes):
    files = [file for process in processes for file in process.files]
    assert sorted(files) == sorted({file_of(test) for test in TESTS})


@pytest.mark.parametrize("processes", [2, 3, 4], indirect=True)
def test_every_third_process_begins_with_spark(processes):
    first = [process.files[0] for process in processes]
    assert [uses_spark(file) for file in first] == [True, False, False, True][: len(processes)]


@pytest.mark.parametrize("processes", [2, 3, 4], indirect=True)
def test_files_that_share_a_server_stay_together(processes):
    (process,) = [process for process in processes if WITH_KAFKA[0] in process.files]
    at = process.files.index(WITH_KAFKA[0])
    assert process.files[at : at + 2] == WITH_KAFKA
