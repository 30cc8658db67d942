"""Classic groups: members agree by JoinGroup and SyncGroup, and a leader among them assigns."""
