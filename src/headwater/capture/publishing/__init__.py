"""Publishing into topics: Kafka transactions of records, each with the capture's position."""
