"""The Kafka broker: connections, APIs, groups, queues, transactions, security; one event loop."""
