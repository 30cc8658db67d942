"""Webhooks and e-mail: rows that are sent out, at least once, with an idempotency key."""
