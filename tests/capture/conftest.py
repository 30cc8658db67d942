"""The databases that captures are tested on."""

from postgres_server import postgres, postgres_server

__all__ = ["postgres", "postgres_server"]
