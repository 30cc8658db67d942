"""Events of orders, which tests and processes of tests register with types of their own."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Placed:
    order: str


@dataclass(frozen=True)
class Paid:
    order: str


@dataclass(frozen=True)
class Cancelled:
    order: str
    reason: str


@dataclass(frozen=True)
class Reviewed:
    order: str
