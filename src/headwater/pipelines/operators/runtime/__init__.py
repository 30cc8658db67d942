"""The runtime of operators in Spark: planning, packing, tasks, names, lineage."""
