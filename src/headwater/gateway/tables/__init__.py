"""Tables over HTTP: rows of derived SQL stores, and the latest record of each key of a topic.

routes          GET /tables/T and GET /tables/T/KEY
├── queries         where, order and limit out of the query
├── derived         tables that pipelines and views maintain in SQLite, PostgreSQL, MySQL
│   └── rows            their rows as JSON
├── latest          compacted topics as tables
└── waiting         Headwater-Position: an answer that contains what a client has written
"""
