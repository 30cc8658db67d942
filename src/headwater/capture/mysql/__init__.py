"""MySQL and MariaDB as sources: their binlog, read as a replica does.

    source.py        MySqlSource: what capture/contract.py asks for
    connection.py    queries, packets, and what the server's errors mean
    server.py        which kind of server it is, where its log ends, which transactions it lacks
    checks.py        what is wrong with the server's settings and our rights
    chunks.py        tables read for snapshots
    catalog.py       information_schema; ddl.py: which tables a statement touches
    columns.py       a column as declared, and as Debezium represents it
    values.py        dates, decimals, geometry; charsets.py: from a column's bytes to text
    binlog/          the log's format
      dump.py          requests the log of the server
      events.py        events: framing, checksums, and what each type contains
      table_map.py     the event that describes the layout of the rows behind it
      row_decoder.py   Python code generated per table: from rows in the binlog to dicts
      json_binary.py   MySQL's binary JSON
      gtids.py         GTID sets of MySQL and MariaDB; positions.py: where a transaction is
    stream/          from events to transactions
      binlog_stream.py     Begin, Change, Commit
      transactions.py      a transaction in progress; position.py: the point behind the last one
      mapped_tables.py     table maps, cached with the decoders of their rows
      schema_history.py    which columns a table had at a position in the log
      failures.py          why a table cannot be captured any longer

Positions are described in binlog/positions.py.
"""

from headwater.capture.mysql.source import MySqlSource

__all__ = ["MySqlSource"]
