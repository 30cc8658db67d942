"""Consumer groups of KIP-848: the broker assigns, and members reconcile by heartbeats."""
