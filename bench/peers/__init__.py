"""The brokers and clients that Headwater is measured and tested against, got from registries."""
