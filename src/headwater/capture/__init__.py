"""Change data capture: every committed change of a database, once and in order, in its topic.

    contract.py    what a source of changes is, and its events: begin reading here
    sources.py     which source follows which address
    runner.py      one run of a capture, from the stored position on
    positions.py   what is stored of a capture; signals.py: requests to a running one
    metrics.py     its counters; http.py: /metrics, /live, /ready
    settings.py    what can be set in [capture.NAME]
    tables/        captured tables, their states and snapshots
    rules/         masked columns, conditions on rows
    records/       from changes to records in Debezium's envelope
    publishing/    Kafka transactions of records and positions

and a package for each source: postgres, mysql, sqlite, mongo, debezium. ARCHITECTURE.md describes
the life of a captured change.
"""
