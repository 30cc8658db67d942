"""Into topics over HTTP: one record, a batch, or a stream of lines of any length.

routes        POST /topics/T
├── bodies        a body as a whole or line by line, bounded by bytes
├── forms         from a body's content type to records
│   └── csv_rows      rows of CSV, line by line
├── delivery      records to the broker, acknowledged when they are durable
└── once          Idempotency-Key: a request that is repeated is written once
"""
