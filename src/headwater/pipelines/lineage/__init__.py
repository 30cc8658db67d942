"""Lineage of derived rows: conditions pushed through Spark's plans and through operators."""
