"""Drivers that write to PostgreSQL are killed, and so is PostgreSQL."""

import pytest
from sink_killing import KillContract
from test_postgres_sink_contract import SCHEMAS, Postgres, warehouse

__all__ = ["warehouse"]


class TestPostgresKills(KillContract):
    drivers = ("psycopg2",)
    chosen_kills = 30

    @pytest.fixture
    def backend(self, warehouse):
        return Postgres(warehouse, f"s{next(SCHEMAS)}")
