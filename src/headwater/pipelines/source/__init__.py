"""The log as DataFrames: Spark's `format("headwater")`, for streams and for batch reads.

    data_source        Spark's entry point: options and schema in, readers out
    ├── streaming      offset ranges of micro-batches
    ├── batch          offset ranges of a batch read, and how tasks share them
    ├── reading        an offset range of a partition into Arrow, in a task
    ├── planned_ends   ends of micro-batches that were planned for several sources together
    ├── progress       rows that report how far a partition has been read
    ├── log_ends       partitions and offsets of the topics that are read
    ├── admission      limits of a micro-batch by rows and estimated bytes
    ├── sizing         a check of that estimate by samples
    └── options        the options
    kafka_connector    the same through Spark's own connector for Kafka, where its jar is given

Offsets are JSON, {"topic": {"0": 123}}: the next offset to be read of each partition. A partition
that is in the end of a micro-batch but not in its start has no rows in it: so it enters the stream
with the offset that it is read from. The start of a stream is thus recorded once, before the first
record is read, and is the same after every crash.
"""
