"""Internal topics (`__consumer_offsets` and others), to which coordinators write their state."""
