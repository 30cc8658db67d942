"""The largest matching of two sides of which some pairs fit (a bipartite graph)."""

from collections.abc import Collection


def matching(edges: Collection[tuple[int, int]], lefts: int) -> list[tuple[int, int]]:
    """As many pairs of `edges` as possible, each side at most once. `lefts` is the number of nodes
    on the left side.
    """
    by_left: dict[int, list[int]] = {}
    for left, right in edges:
        by_left.setdefault(left, []).append(right)
    left_of: dict[int, int] = {}  # of a right node

    def find(left: int, tried: set[int]) -> bool:
        for right in by_left.get(left, ()):
            if right not in tried:
                tried.add(right)
                if right not in left_of or find(left_of[right], tried):
                    left_of[right] = left
                    return True
        return False

    for left in range(lefts):
        find(left, set())
    return sorted((left, right) for right, left in left_of.items())
