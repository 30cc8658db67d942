"""The log: topics as partitions of durable segments; recovery, retention, compaction, archive."""
