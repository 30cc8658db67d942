"""Values that are Avro.

decoder     of plain values
envelopes   Debezium's envelope in Avro, as the JSON that its decoder reads
schemas     those that options name
registered  those that a registry has
"""
