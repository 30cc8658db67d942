"""Records of changes: Debezium's envelope, Kafka Connect schemas, the outbox, the schema topic."""
