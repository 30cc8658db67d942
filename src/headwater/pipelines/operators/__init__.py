"""Stateful operators that Spark lacks: event time, windows, joins, as functions of DataFrames.

An operator is a step (runtime/contract.py) that does not depend on Spark. Two stages run it: the
first packs rows by hash buckets of their keys (runtime/packing.py), the second takes each bucket's
rows and its state through the step (runtime/task.py). runtime/planning.py makes one DataFrame of
both.
"""
