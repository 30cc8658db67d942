"""Java's producer, consumer and admin client: every check of tests/clients/java, in one JVM.

The JVM runs all checks and prints a verdict for each; here each verdict is one test case.
"""

import re
import subprocess
from pathlib import Path

import pytest
from tiers import IS_FULL, in_full

from bench.peers.kafka import TOOL_JVM, classpath
from bench.peers.provision import missing_tools

SOURCES = sorted((Path(__file__).parent / "java").glob("*.java"))
NAMES = [
    name
    for source in SOURCES
    for name in re.findall(r'checks\.add\(\s*"([^"]+)"', source.read_text())
]
SUITE_TIMEOUT_S = 240
# Those of the quick tier: of each kind the one with the most in it, and both protocols of groups.
TELLING = [
    "admin-create-topic",
    "consume-read-committed",
    "group-classic-cooperative-sticky",
    "group-consumer-uniform",
    "produce-zstd",
    "produce-order-in-flight",
    "share-explicit-acknowledgement",
    "transactions-copy-consumer-group",
    "transactions-zombie-is-fenced",
]

pytestmark = [
    pytest.mark.java,
    pytest.mark.timeout(SUITE_TIMEOUT_S + 60),
    pytest.mark.skipif(
        bool(missing_tools("java", "javac", "mvn")), reason="needs java, javac and mvn on the PATH"
    ),
]


@pytest.fixture(scope="module")
def verdicts(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the JVM said of each check: "" if it passed, or the reason why not."""
    classes = tmp_path_factory.mktemp("classes")
    subprocess.run(["javac", "-cp", classpath(), "-d", classes, *SOURCES], check=True)
    done = subprocess.run(
        [
            *["java", *TOOL_JVM, "-cp", f"{classes}:{classpath()}", "Checks", broker_address],
            *([] if IS_FULL else TELLING),
        ],
        capture_output=True,
        text=True,
        timeout=SUITE_TIMEOUT_S,
        check=False,
    )
    said = dict(re.findall(r"^(?:PASS|FAIL) ([a-z0-9-]+)(?:: (.*))?$", done.stdout, re.MULTILINE))
    assert said, f"the JVM said nothing: {done.stderr[-3000:]}"
    return said


@pytest.mark.parametrize(
    "name", [*TELLING, *in_full(*(name for name in NAMES if name not in TELLING))]
)
def test_java_client(name: str, verdicts: dict[str, str]) -> None:
    assert name in verdicts, "the check did not end"
    assert not verdicts[name], verdicts[name].replace(" | ", "\n")
