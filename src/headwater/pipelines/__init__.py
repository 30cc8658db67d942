"""Pipelines on Spark: from the log to the stores that are derived from it.

session      a Spark that is made for streams
source       the log as DataFrames
topic_writer DataFrames into the log, exactly once
decoding     bytes to typed columns; what cannot be read goes to dead letters
flow         what a pipeline's function is given: changes, table, write
running      queries, batch by batch into the sinks
"""
