import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from headwater.broker.groups.consumer_protocol import topic_regex
from headwater.broker.groups.consumer_protocol.topic_regex import compile_topic_regex
from headwater.protocol.error_codes import ApiError, ErrorCode

NAMES = st.text(alphabet="ab.-_A0", max_size=8)
ATOMS = st.sampled_from(
    ["a", "b", ".", r"\.", "[ab]", "[^a]", "[a-b_]", r"\d", r"\w", r"\W", "-", "^", "$", "(?i:a)"]
)


def _grow(inner):
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "*?", "{0,}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        inner.map(lambda pattern: f"({pattern})"),
    )


@given(pattern=st.recursive(ATOMS, _grow, max_leaves=8), names=st.lists(NAMES, min_size=5))
@settings(max_examples=examples(300), deadline=None)
def test_it_agrees_with_re_on_what_both_can(pattern, names):
    matches, expected = compile_topic_regex(pattern), re.compile(pattern, re.ASCII)
    for name in names:
        assert matches(name) == bool(expected.fullmatch(name)), (pattern, name)


@pytest.mark.parametrize(
    ("pattern", "name", "result"),
    [
        ("orders-.*", "orders-eu", True),
        ("orders-.*", "my-orders-eu", False),
        ("^orders$", "orders", True),
        ("(?i)ORDERS", "orders", True),
        ("a|b|cd", "cd", True),
        ("", "", True),
        ("", "a", False),
        ("a^b", "ab", False),
        ("(^a|b)*", "ab", True),
    ],
)
def test_examples(pattern, name, result):
    assert compile_topic_regex(pattern)(name) is result


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a|a)*b", "(a*)*(a*)*b", ".*.*.*.*.*.*.*x", "(.*a){30}", "((a?){9}){9}b"],
)
def test_patterns_that_would_keep_re_busy_for_years_are_answered(pattern):
    matches = compile_topic_regex(pattern)
    assert not matches("a" * 249 + "-")


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "[", "*", "a{2,1}", "(?P<x>a", r"\1", r"(a)\1", "(?=a)", "(?!a)", "(?<=a)",
        r"\ba", "(?(1)a|b)", "(" * 5000 + ")" * 5000, "(a{100}){100}", "a{99999999}", "(?>a)",
        "a++", "[[a]", "(?P<n>a)(?P=n)", "x" * 3000,
        # Empty bodies add no state, however often they are repeated.
        "(?:){30000000}", "(?:(?:){1000}){1000}", "(?:(?:(?:|){30}){30}){30}", "(?:){0,2000000000}",
        "(?#" + "x" * 5000 + ")a", "a{" + "9" * 5000 + "}",
    ],
)  # fmt: skip
def test_what_is_no_pattern_or_too_much_is_refused(pattern):
    with pytest.raises(ApiError) as refused:
        compile_topic_regex(pattern)
    assert refused.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("pattern", [".*a.{900}", ".*[ab].{200}(.*[ab].{200})*", "(.?){900}a.{99}"])
def test_a_pattern_that_takes_a_new_set_of_states_at_every_character_is_refused(pattern):
    """Otherwise each name would cost its length times the states, on the event loop."""
    matches = compile_topic_regex(pattern)
    names = ("".join(random.Random(seed).choices("abc-", k=249)) for seed in range(1000))
    with pytest.raises(ApiError) as refused:
        for name in names:
            matches(name)
    assert refused.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_repetition_does_not_go_through_a_long_class_each_time(monkeypatch):
    """A thousand ranges, repeated a thousand times, held up the event loop for seconds."""
    looked_at = []

    def counted(code, argument, *, ignore_case):
        looked_at.append(code)
        return characters(code, argument, ignore_case=ignore_case)

    characters = topic_regex._characters
    monkeypatch.setattr(topic_regex, "_characters", counted)
    ranges = "".join(f"{chr(2 * at)}-{chr(2 * at + 1)}" for at in range(0x200, 0x600))
    matches = compile_topic_regex(f"[{ranges}a]{{900}}|b{{3}}")
    assert len(looked_at) == 2
    assert not matches("a" * 899)
    assert matches("a" * 900)
    assert matches("bbb")
