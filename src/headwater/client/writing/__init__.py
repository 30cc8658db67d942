"""Writing in bulk: batches, encoding, idempotent and transactional producers."""
