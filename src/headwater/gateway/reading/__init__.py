"""Out of topics over HTTP: server-sent events, NDJSON streams, and long polling.

routes          GET /topics/T
├── subscription    one client: first from the log, then from the feed; nothing is lost between
│   ├── feeds           one reading of a topic's end for all clients of a login
│   └── backlog         what lies before it, read from the log for one client
├── positions       where a client is: ids of events, and `from`
├── filters         by key, header and JSON path
└── entries         a record as JSON, encoded once for all clients
"""
