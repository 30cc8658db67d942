"""MongoDB as a source: its change streams.

    source.py       MongoSource: what capture/contract.py asks for
    connection.py   the client, and what its errors mean
    checks.py       what must be right in the database, and the command that fixes it
    stream.py       from events of a change stream to transactions
    chunks.py       collections read in chunks, and which transactions a read saw
    documents.py    from BSON to extended JSON
    shape.py        documents in Debezium's envelope

**Positions.** A position is the resume token of a transaction's first event, its cluster time and,
if it is a multi-document transaction, which: {"token": {"_data": "82…"}, "ts": [seconds, ordinal],
"txn": "lsid:number"}. The cluster time is that of the commit in the oplog: one transaction, one
time, and a read at cluster time T shows exactly what was committed up to T.
"""
