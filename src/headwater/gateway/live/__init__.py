"""Live queries: the rows of a table that pass a filter, and then every change of them.

routes          GET /live/T
└── subscription    one client: a snapshot, or what it has missed; then the changes
    ├── tables          one reading of a topic for all clients of a login
    │   ├── table           the rows that a topic has now, and the last changes, numbered
    │   ├── loading         the rows of a topic, read from its start
    │   └── memory          what all tables together may take
    ├── marks           where a client is: ids of events
    └── queries         where and columns
"""
