"""How an operator runs in Spark: packing, buckets, stages, names, lineage."""
