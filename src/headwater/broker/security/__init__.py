"""Who a client is, what it may do, and what is written down of it."""
