"""Lineage of derived rows: how far a condition gets through Spark's plan (plans.py), and through
the operators in it (operator_rows.py).
"""
