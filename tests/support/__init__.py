"""Helpers that the suites share: harnesses, servers, programs that tests start."""

from pathlib import Path

SUPPORT = Path(__file__).parent
