"""/topics: the list, and the pages of one topic: records, search, tail, changes, settings."""
