"""Commands of the log: its broker, topics, records, consumer groups and queues."""
