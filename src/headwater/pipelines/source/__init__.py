"""The log as DataFrames: Spark's `format("headwater")`, for streams and for batch reads.

    data_source        what Spark calls: options and schema in, readers out
    ├── streaming      which offsets a micro-batch has
    ├── batch          which offsets a batch read has, and how tasks share them
    ├── reading        a stretch of a partition into Arrow, in a task
    ├── progress       rows that tell how far a partition has been read
    ├── log_ends       partitions and offsets of the topics that are read
    ├── admission      how much of what is there goes into one micro-batch
    ├── sizing         whether that is as small as it seems
    └── options        what can be set
    kafka_connector    the same through Spark's own connector for Kafka, where its jar is given

Offsets are JSON, {"topic": {"0": 123}}: the next offset to be read of each partition. A partition
that is in the end of a micro-batch but not in its start has no rows in it: that is how it enters,
where it is to be read from. So where a stream begins is written down once, before the first record
is read, and is the same after every crash.
"""
