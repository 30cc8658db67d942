"""Errors in a pipeline's function, as they are reported to users."""

import pytest

from headwater.pipelines.spark_errors import explained, first_line

STAGE = (
    "An error occurred while calling o77.collectToPython.\n: org.apache.spark.SparkException: Job"
    " aborted due to stage failure: Total size of serialized results of 3 tasks (1030.1 MiB) is"
    " bigger than spark.driver.maxResultSize (1024.0 MiB)\n\tat org.apache.spark.x(Y.scala:1)\n"
)
ENDED = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [DIVIDE_BY_ZERO] Division"
    " by zero. SQLSTATE: 22012\n== DataFrame ==\n"
)
MARKED = (
    "org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. If necessary set"
    ' "spark.sql.ansi.enabled" to "false" to bypass this error. SQLSTATE: 22012\n'
    "== SQL (line 1, position 8) ==\nSELECT a / b AS x FROM t\n       ^^^^^\n"
)
PYTHON = (
    "\n  An exception was thrown from the Python worker. Please see the stack trace below.\n"
    'Traceback (most recent call last):\n  File "/home/a/orders.py", line 8, in bad\n'
    '    return 1 // (x - 3)\n  File "/x/site-packages/pyspark/worker.py", line 5, in f\n'
    "ZeroDivisionError: integer division or modulo by zero\n"
)
OURS = "Traceback (most recent call last):\nheadwater.errors.DataLost: orders-0 is gone: 5 < 7\n"


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (STAGE, "p: the rows of one batch are too many for the driver: Total size of serialized"),
        (ENDED, "p: a value has no result: [DIVIDE_BY_ZERO] Division by zero."),
        (MARKED, "p: a value has no result in a / b: [DIVIDE_BY_ZERO] Division by zero."),
        (PYTHON, "orders.py:8: ZeroDivisionError: integer division or modulo by zero"),
        (
            PYTHON.replace("ZeroDivisionError: ", "shop.Odd: no "),
            "orders.py:8: shop.Odd: no integer",
        ),
        (OURS, "pipeline p: orders-0 is gone: 5 < 7"),
        ("", "RuntimeError"),
    ],
)
def test_an_error_of_spark_is_one_line(text, reported):
    error = explained("p", RuntimeError(text))
    assert reported in str(error)
    assert "\n" not in str(error)


def test_a_plan_is_left_out():
    text = "[UNRESOLVED] `x` cannot be resolved. SQLSTATE: 42703; line 1 pos 0;\n'Filter ('x > 3)"
    assert first_line(text) == "[UNRESOLVED] `x` cannot be resolved."
