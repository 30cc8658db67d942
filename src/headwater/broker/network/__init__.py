"""The network side of the broker: listener, connections, framing, TLS and backpressure."""
