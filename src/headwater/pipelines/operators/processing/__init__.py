"""Python functions with keyed state and timers: what no other operator does."""
