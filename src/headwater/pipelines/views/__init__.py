"""SQL over tables that change: incremental plans of Spark's own analysed queries."""
