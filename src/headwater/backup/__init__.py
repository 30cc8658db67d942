"""Backups of a data directory, taken while everything runs.

    copying     files, each with its checksum
    taking      a backup: the state of pipelines, then the log as of one moment
    restoring   the same, backwards

    <backup>/backup.json     written last: format, version, when, every file with size and checksum
    <backup>/pipelines/…     checkpoints and state of pipelines (spark.state_dir)
    <backup>/log/…           the log

The state of pipelines comes first, so that the log is never behind it: a pipeline that goes on from
the backup finds everything it has read.
"""
