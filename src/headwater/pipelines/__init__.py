"""Pipelines on Spark: from the log to the stores that are derived from it.

session        the Spark session, tuned for streaming
source         the log as DataFrames
decoding       bytes to typed columns; undecodable records become dead letters
flow           hw.Flow, the argument of a pipeline's function: changes, table, write
operators      event-time operators with state: windows, joins, aggregates
search         stored queries that documents flow past
publishing     records into topics, exactly once: results, late rows, dead letters
running        the process that runs queries, batch by batch into the sinks
verification   stores and captured topics compared with their sources
lineage        the records behind a row
"""
