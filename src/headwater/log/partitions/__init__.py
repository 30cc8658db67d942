"""One partition of a topic: appends, group commit, reads, producers, transactions."""
