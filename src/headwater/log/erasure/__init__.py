"""Erasure: the contents of single records are removed from the log, for good, in the background.

    erasures.py    what was asked for and what became of it, durable in the catalog
    eraser.py      the background work: one partition after the other (broker)
    rewriting.py   one segment written again with blanks (child process)
    archived.py    the same for segments in the archive (broker)

What a blank is: protocol/erased_records.py. A segment is written again beside the old one and
swapped in as compaction does it (compaction/swap.py), so a crash leaves the old one or the new one.
An erasure is durable before anything is rewritten, and is continued at the next start until it is
done. It is done when the old files are off the disk: when their last reader has let them go.
"""
