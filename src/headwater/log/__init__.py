"""The log: topics of partitions on the disk, durable, recovered after a crash, archived, compacted.

store, data_directory, catalog    the directory, its lock, its topics
opening, recovery, snapshots      from the files to the state of partitions
partition                         appends, in order; commit and committer make them durable
partition_segments                the segments of a partition, here and in the archive
partition_reads                   from an offset to the bytes of batches
segment, index, transactions      the files of one segment
checkpoints, checkpoint_file      what a start after a crash need not scan
retention, compaction/, archive/  what is deleted, what is cleaned, what is tiered
files, syncing, workers           the disk, and the threads that wait for it
"""
