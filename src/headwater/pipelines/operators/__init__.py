"""What Spark lacks, as functions from DataFrame to DataFrame: event time, windows, joins.

An operator is a step (contract.py) that knows nothing of Spark. Two stages run it (stages.py): the
first packs rows by hash buckets of their keys, the second takes each bucket's rows and its state
through the step.
"""
