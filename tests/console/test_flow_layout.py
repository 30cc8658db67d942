"""Every node has a place of its own, edges go to the right, the same graph lies the same."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.console.flow.graph import Edge, Graph, Node
from headwater.console.flow.layout import HEIGHT, WIDTH, layout

KINDS = ("source", "topic", "pipeline", "store", "group")


def graph(kinds, joined):
    made = Graph()
    for number, kind in enumerate(kinds):
        made.add(Node(f"n{number}", kind, f"name{number}", "/"))
    for source, target in joined:
        if source != target and max(source, target) < len(kinds):
            made.join(Edge(f"n{source}", f"n{target}"))
    return made


@given(
    st.lists(st.sampled_from(KINDS), max_size=60),
    st.lists(st.tuples(st.integers(0, 59), st.integers(0, 59)), max_size=120),
)
def test_no_two_overlap_and_all_is_within(kinds, joined):
    placed = layout(graph(kinds, joined))
    assert len(placed.nodes) == len(kinds)
    for index, one in enumerate(placed.nodes):
        assert 0 <= one.x <= placed.width - WIDTH
        assert 0 <= one.y <= placed.height - HEIGHT
        for other in placed.nodes[index + 1 :]:
            assert abs(one.x - other.x) >= WIDTH or abs(one.y - other.y) >= HEIGHT


@given(
    st.lists(st.sampled_from(KINDS), max_size=30),
    st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=60),
    st.randoms(),
)
def test_the_same_graph_lies_the_same(kinds, joined, chance: random.Random):
    made = graph(kinds, joined)
    shuffled = Graph()
    for name in chance.sample(sorted(made.nodes), len(made.nodes)):
        shuffled.add(made.nodes[name])
    for ends in chance.sample(sorted(made.edges), len(made.edges)):
        shuffled.join(made.edges[ends])
    one, other = layout(made), layout(shuffled)
    assert {(node.node.id, node.x, node.y) for node in one.nodes} == {
        (node.node.id, node.x, node.y) for node in other.nodes
    }
    assert [edge.path for edge in one.edges] == [edge.path for edge in other.edges]


def test_what_feeds_lies_left_of_what_is_fed():
    # source → topic → pipeline → topic → pipeline → store, and from the first topic to the last
    # pipeline, past the others.
    kinds = ("source", "topic", "pipeline", "topic", "pipeline", "store")
    made = graph(kinds, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (1, 4)])
    placed = {node.node.id: node for node in layout(made).nodes}
    columns = [placed[f"n{number}"].x for number in range(6)]
    assert columns == sorted(set(columns))
    (passing,) = [edge for edge in layout(made).edges if edge.edge.target == "n4" and
                  edge.edge.source == "n1"]  # fmt: skip
    assert passing.path.count("C") == 5  # two columns lie between


@pytest.mark.parametrize("kinds", [(), ("topic",)])
def test_little(kinds):
    placed = layout(graph(kinds, []))
    assert placed.width > 0
    assert placed.height > 0


def test_neighbours_lie_side_by_side():
    """Two chains do not cross, whatever their names."""
    made = graph(("topic", "topic", "group", "group"), [(0, 3), (1, 2)])
    height = {node.node.id: node.y for node in layout(made).nodes}
    assert (height["n0"] < height["n1"]) == (height["n3"] < height["n2"])
