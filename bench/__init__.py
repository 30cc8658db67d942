"""Benchmarks: Headwater, Apache Kafka and kfake in turn, on this machine, in one sitting."""
