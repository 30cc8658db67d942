"""A SQL view over two tables beside Flink SQL, on the same topics, each alone on the machine."""
