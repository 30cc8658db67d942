"""A Kafka client for writing and reading in bulk, for our broker and for Apache Kafka.

    transactions    TransactionalProducer: what the rest of Headwater writes with
    ├── sending     in-flight batches to the partitions' leaders, each stored once
    ├── batches     records into batches, and a key's partition
    ├── encoding    the same from Arrow columns; encoding_kernels has its loops, by numba
    └── cluster     leaders and coordinators; requests retried until there is a response
        └── connection, login    one socket to one broker; authentication
    fetching        Fetcher: offsets of partitions, and their records as Arrow
    ├── range_fetcher    one offset range of a partition, fetched to its end
    ├── fetched     the batches of a Fetch response, and which of them count
    ├── arrow       batches into Arrow columns; record_kernels has its loops, by numba
    ├── offsets     offsets by time, one request to each leader
    └── cluster     as above
    group_offsets   commits offsets of a group, so that tools see its lag
    topics          creates topics
    erasing         erases single records of Headwater's broker
    compacted       the latest value of each key of a topic

librdkafka takes records one at a time, and its transactions are those from before KIP-890. Here the
records of a batch are encoded at once, and a transaction is Produce and EndTxn.
"""
