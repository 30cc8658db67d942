"""The log: durable topics of partitions; recovered after a crash, archived, compacted.

store, catalog, settings, config  all topics of a data directory, and how they are configured
opening, recovery, snapshots      from the files to the state of partitions
partitions/                       one partition: appends, group commit, reads, producers
segment, index                    the files of one segment
checkpoints                       what a start after a crash need not scan
retention, compaction/, archive/  what is deleted, what is cleaned, what is tiered
disk/                             files, syncs, and the threads that wait for them
"""
