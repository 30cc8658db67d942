"""The two tiers of the suite: what every change is tested with, and what `make test-all` adds.

A test, or one of its parameters, that only the full tier has is marked `long`. Where that is a
whole suite (a contract on a slow store, the twins on Apache Kafka), its `representative` tests are
in both tiers. Random and repeated tests take their number of seeds and kills from here.
HEADWATER_LONG is the switch underneath: 1 is the full tier, a higher number is the full tier with
that many kills.
"""

import os
from typing import Any

import pytest

from bench.peers.provision import missing_tools

_LONG = os.environ.get("HEADWATER_LONG", "")
IS_FULL = _LONG not in ("", "0")

long = pytest.mark.long
# In the quick tier although its module, its class or a parameter is `long`: it stands for them.
representative = pytest.mark.representative
# A test has few rows: to compile an expression takes Spark a hundred times as long as to evaluate
# it as it is. In the quick tier only the Spark of test_cluster.py compiles, as that of users does.
SPARK_INTERPRETS = (
    " -Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
)
REAL_KAFKA = pytest.param(
    "kafka",
    marks=[
        long,
        pytest.mark.java,
        pytest.mark.skipif(
            bool(missing_tools("java", "mvn")), reason="needs java and mvn on the PATH"
        ),
    ],
)


def count(quick: int, full: int) -> int:
    """How many seeds, rounds or examples there are in this tier."""
    return full if IS_FULL else quick


def some(*cases: Any, quick: int = 1) -> tuple[Any, ...]:
    """Cases of one kind within a test: the first ones in the quick tier."""
    return cases if IS_FULL else cases[:quick]


def kills(quick: int, full: int) -> int:
    """How many kills there are in this tier, or as many as HEADWATER_LONG asks for."""
    return int(_LONG) if _LONG.isdigit() and int(_LONG) > 1 else count(quick, full)


def examples(full: int) -> int:
    """Hypothesis' `max_examples`: a twentieth of them in the quick tier, always the same ones."""
    return count(quick=max(full // 20, 4), full=full)


def seeds(full: int) -> range:
    """The seeds of a random test: a twelfth of them in the quick tier, at least the first."""
    return range(count(quick=max(full // 12, 1), full=full))


def steps(full: int, *, first: int = 0, every: int = 5) -> range:
    """At which of so many steps something dies: at all, or in the quick tier at every fifth.

    `every` is odd, because writes and syncs take turns.
    """
    return range(full) if IS_FULL else range(first, full, every)


def in_full(*parameters: Any) -> list[Any]:
    """The same parameters of a test, for the full tier only: `[1, 2, *in_full(3, 4)]`.

    A tuple is the values of several names.
    """
    return [
        pytest.param(*(values if isinstance(values, tuple) else (values,)), marks=long)
        for values in parameters
    ]
