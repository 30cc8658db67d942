"""A Kafka client for writing and reading in bulk, for our broker and for Apache Kafka.

    transactions    TransactionalProducer: what the rest of Headwater writes with
    ├── sending     batches on their way to the partitions' leaders, each stored once
    ├── batches     records into batches, and a key's partition
    ├── encoding    the same from Arrow columns; encoding_kernels has its loops, by numba
    └── cluster     who leads, who coordinates; asking until there is an answer
        └── connection, login    one socket to one broker; proving who we are
    fetching        Fetcher: offsets of partitions, and their records as Arrow
    ├── stretch     one stretch of a partition, fetched to its end whatever happens
    ├── fetched     what an answer to Fetch holds, and what of it counts
    ├── arrow       batches into Arrow columns; record_kernels has its loops, by numba
    ├── offsets     offsets by time, one request to each leader
    └── cluster     as above
    group_offsets   offsets of a group, for others to see the lag
    topics          creates topics
    compacted       the latest value of each key of a topic

librdkafka takes records one at a time, and its transactions are those from before KIP-890. Here the
records of a batch are put together in one place, and a transaction is Produce and EndTxn.
"""
