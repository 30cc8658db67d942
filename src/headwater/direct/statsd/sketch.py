"""Percentiles of weighted numbers in bounded memory (DDSketch: Masson, Rim, Lee; VLDB 2019).

A number falls into the bucket of its logarithm, so that each bucket's middle is within 1 % of every
number in it. There are at most _MAX_BUCKETS: then the ones nearest to zero are merged.
"""

import math
from typing import Final

_ACCURACY: Final = 0.01
_GAMMA: Final = (1 + _ACCURACY) / (1 - _ACCURACY)
_LOG_GAMMA: Final = math.log(_GAMMA)
_MAX_BUCKETS: Final = 2048  # for positive and for negative numbers; 17 powers of ten
_LEAST: Final = 1e-9  # what is nearer to zero is zero
_MOST_EXPONENT: Final = 709.0  # exp(710) is no float


class Sketch:
    """Of any finite numbers, with weights above 0."""

    __slots__ = ("_negative", "_positive", "_zero")

    def __init__(self) -> None:
        self._negative: dict[int, float] = {}
        self._positive: dict[int, float] = {}
        self._zero = 0.0

    @property
    def buckets(self) -> int:
        return len(self._negative) + len(self._positive)

    def has_bucket(self, number: float) -> bool:
        """Whether adding the number takes no more memory."""
        buckets = self._positive if number > 0 else self._negative
        return abs(number) < _LEAST or _index(number) in buckets or len(buckets) >= _MAX_BUCKETS

    def add(self, number: float, weight: float) -> None:
        if abs(number) < _LEAST:
            self._zero += weight
            return
        buckets = self._positive if number > 0 else self._negative
        index = _index(number)
        buckets[index] = buckets.get(index, 0.0) + weight
        if len(buckets) > _MAX_BUCKETS:
            least, next_ = sorted(buckets)[:2]
            buckets[next_] += buckets.pop(least)

    def quantiles(self, shares: tuple[float, ...]) -> list[float]:
        """For each share (ascending, from 0 to 1) the number below which that share lies."""
        ordered = [
            (-_middle(index), self._negative[index]) for index in sorted(self._negative)[::-1]
        ]
        if self._zero:
            ordered.append((0.0, self._zero))
        ordered += [(_middle(index), self._positive[index]) for index in sorted(self._positive)]
        total = sum(weight for _, weight in ordered)
        found: list[float] = []
        below = 0.0
        position = iter(ordered)
        number, weight = next(position)
        for share in shares:
            # The number at that rank: rank 0 is the least one, total - 1 the greatest.
            while below + weight <= share * (total - 1):
                below += weight
                following = next(position, None)
                if following is None:
                    break
                number, weight = following
            found.append(number)
        return found


def _index(number: float) -> int:
    return math.ceil(math.log(abs(number)) / _LOG_GAMMA)


def _middle(index: int) -> float:
    return 2 / (_GAMMA + 1) * math.exp(min(index * _LOG_GAMMA, _MOST_EXPONENT))
