"""Drivers that write to PostgreSQL are killed, and so is PostgreSQL."""

import pytest
from support.sinks.sink_killing import KillContract
from test_postgres_sink_contract import SCHEMAS, Postgres, warehouse
from tiers import count

__all__ = ["warehouse"]


class TestPostgresKills(KillContract):
    drivers = ("psycopg2",)
    has_all_of_it = True
    chosen_kills = count(quick=10, full=30)

    @pytest.fixture
    def backend(self, warehouse):
        return Postgres(warehouse, f"s{next(SCHEMAS)}")
