"""Tables over HTTP: rows of derived SQL stores, and of topics with the last record of every key.

routes          GET /tables/T and GET /tables/T/KEY
├── queries         where, order and limit out of the query
├── derived         tables that pipelines and views maintain in SQLite, PostgreSQL, MySQL
│   └── rows            their rows as JSON
├── latest          topics as tables
│   ├── table_topics    which topics are tables
│   └── keys            the key itself, or the values of its columns
└── waiting         Headwater-Position: an answer that contains what a client has written
"""
