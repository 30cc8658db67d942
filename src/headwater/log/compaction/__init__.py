"""Log compaction: of all records with the same key only the latest stays.

    due.py        which partitions are worth a pass (broker)
    compactor.py  passes one after the other, in a child process (broker)
    worker.py     that child: jobs in, cleaned segments out
    cleaning.py   one pass over one partition (child)
    output.py     the cleaned segments that it writes (child)
    kernels.py    its loops, compiled by numba (child)
    plain_loops.py  the same in plain Python, where numba is not installed (child)
    loops.py      which of the two this installation has; pass_state.py: what both share
    swap.py       cleaned segments replace the old ones, also through a crash (broker)

A pass reads the dirty part of the log into a map from key to latest offset, then writes all
segments up to there again without the records that the map supersedes, and merges small ones.
Offsets never change. numba (100 MB, 0.7 s to import) is never imported by the broker itself.
"""
