"""Full-text indexes in a directory as derived stores, by tantivy in this process."""
