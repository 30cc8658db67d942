"""The registry: subjects, versions and ids of schemas, stored in the topic `_schemas`.

    registry    what can be asked and changed, by any number of processes at once
    ├── registering, deletion, subject_settings    decisions: from the state to records
    ├── replica     the state in memory, which follows the topic and changes it
    │   ├── tables  what it has, as the records make it
    │   └── topic   the topic: read to its end, written by one process at a time
    └── records     keys and values, in Confluent's own format

A change is decided on the state and becomes records in one transaction; the state changes when they
are read back. So every process has the same state at the same offset.
"""
