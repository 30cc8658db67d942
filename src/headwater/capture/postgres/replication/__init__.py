"""Logical replication: slot, publication and the stream of pgoutput's messages."""
