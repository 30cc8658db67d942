"""Reading partitions in bulk: fetches, offset ranges, Arrow columns."""
