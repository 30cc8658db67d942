"""The Kafka broker: connections, APIs, groups, queues, transactions, security, on one event loop."""
