"""The parser of row patterns: trees, and errors with their place."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from headwater.errors import PipelineError
from headwater.pipelines.operators.patterns.language.pattern_text import parse_pattern
from headwater.pipelines.operators.patterns.language.pattern_tree import (
    EMPTY,
    Alternation,
    Excluded,
    PartitionStart,
    Repeated,
    Sequence,
    Variable,
    first_variables,
    is_nullable,
    is_unbounded,
    least_positions,
    variables_of,
)
from headwater.pipelines.operators.patterns.matching.automaton import compile_pattern

A, B, C = Variable("A"), Variable("B"), Variable("C")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("A", A),
        ("A B", Sequence((A, B))),
        ("A | B C", Alternation((A, Sequence((B, C))))),
        ("(A | B) C", Sequence((Alternation((A, B)), C))),
        ("A*", Repeated(A, 0, None)),
        ("A+?", Repeated(A, 1, None, is_greedy=False)),
        ("A??", Repeated(A, 0, 1, is_greedy=False)),
        ("A{3}", Repeated(A, 3, 3)),
        ("A{3,}", Repeated(A, 3, None)),
        ("A{2,5}?", Repeated(A, 2, 5, is_greedy=False)),
        ("A{,5}", Repeated(A, 0, 5)),
        ("(A B)+", Repeated(Sequence((A, B)), 1, None)),
        ("A {- B+ -} C", Sequence((A, Excluded(Repeated(B, 1, None)), C))),
        ("^ A", Sequence((PartitionStart(), A))),
        ("A | ()", Alternation((A, EMPTY))),
        ("PERMUTE(A, B)", Alternation((Sequence((A, B)), Sequence((B, A))))),
        ('"A" `B`', Sequence((A, B))),
        ("A -- the first\n B", Sequence((A, B))),
        ("A a", Sequence((A, A))),  # names are not case-sensitive
    ],
)
def test_texts_and_their_trees(text, tree):
    assert parse_pattern(text) == tree


@pytest.mark.parametrize(
    ("text", "what", "place"),
    [
        ("A (B", "')' is missing", "line 1, column 5"),
        ("A B)", "is not open", "line 1, column 4"),
        ("A |", "a variable is missing", "line 1, column 4"),
        ("A\n  ** B", "two quantifiers", "line 2, column 4"),
        ("A{5,2}", "is no range", "line 1, column 2"),
        ("A{0}", "is no range", "line 1, column 2"),
        ("A{,}", "a number is missing", "line 1, column 4"),
        ("A{2", "'}' is missing", "line 1, column 4"),
        ("A{9999}", "at most 1000", "line 1, column 2"),
        ("A # B", "'#' has no meaning", "line 1, column 3"),
        ("A B $", "a stream has none", "line 1, column 5"),
        ("^* A", "an anchor cannot be repeated", "line 1, column 1"),
        ("A {- B", "'-}' is missing", "line 1, column 7"),
        ("PERMUTE(A,B,C,D,E,F,G)", "may have 6", "line 1, column 8"),
        ("*", "'*' has no meaning", "line 1, column 1"),
        ("(" * 100, "nested too deeply", "line 1"),
    ],
)
def test_errors_have_their_place(text, what, place):
    with pytest.raises(PipelineError) as raised:
        parse_pattern(text)
    assert what in str(raised.value)
    assert place in raised.value.detail


@pytest.mark.parametrize("text", ["", "  ", None])
def test_an_empty_text_is_no_pattern(text):
    with pytest.raises(PipelineError, match="the pattern is empty"):
        parse_pattern(text)


@settings(max_examples=examples(2000), deadline=None)
@given(st.text('AB(){}-|*+?,^$ 12\n"`PERMUTE', max_size=20))
def test_any_text_is_a_pattern_or_an_error_of_ours(text):
    refused = None
    try:
        compile_pattern(parse_pattern(text))
    except PipelineError as error:
        refused = error
    assert refused is None or "line" in refused.detail or "empty" in refused.what


def test_what_follows_from_a_tree():
    tree = parse_pattern("(A | B?) C+ D{2} E")
    assert variables_of(tree) == ("A", "B", "C", "D", "E")
    assert first_variables(tree) == {"A", "B", "C"}
    assert least_positions(tree) == {"A": 0, "B": 0, "C": 0, "D": 1, "E": 3}
    assert is_unbounded(tree)
    assert not is_nullable(tree)
    assert not is_unbounded(parse_pattern("A B{,5}"))
    assert is_nullable(parse_pattern("A* (B | ())"))


def test_a_pattern_that_is_too_large_is_refused():
    with pytest.raises(PipelineError, match="too large"):
        compile_pattern(parse_pattern("((A{1000}){1000}){1000}"))
