"""The process that runs pipelines: queries, batches, status, retries, rebuilding."""
