"""The Kafka protocol: messages, record batches and compression, as bytes and as objects."""
