"""Kafka's protocol as bytes: messages, record batches, error codes, SCRAM."""
