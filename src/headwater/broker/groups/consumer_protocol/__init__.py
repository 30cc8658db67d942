"""The protocol that consumer and share groups share: epochs, target assignments, heartbeats."""
