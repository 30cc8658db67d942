"""The broker: serves the Kafka protocol on top of the log."""
