"""The engine: small batches of a write run in the driver, without a Spark job."""
