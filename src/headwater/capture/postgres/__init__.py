"""PostgreSQL: logical replication with pgoutput, snapshots with COPY."""

from headwater.capture.postgres.source import PostgresSource

__all__ = ["PostgresSource"]
