"""Topics of the log as derived stores: each batch is one Kafka transaction."""
