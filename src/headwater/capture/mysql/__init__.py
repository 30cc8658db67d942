"""Changes of MySQL and MariaDB, from their binlog.

source.py        the Source: what the rest of capture calls
connection.py    the address, connections, errors of the server in our words; packets
stream.py        from binlog events to Begin, Change, Commit
binlog.py        events: framing, checksums, and what stands in each kind
table_map.py     the event that says how the rows behind it are laid out
columns.py       a column as declared, and as Debezium represents it
row_decoder.py   Python code made for one table: from rows in the binlog to dicts
values.py        dates, decimals, geometry: values that need more than a struct
json_binary.py   MySQL's binary JSON
charsets.py      from a column's bytes to text
gtids.py         MySQL's and MariaDB's sets of transactions
places.py        where a transaction stands in the log
ddl.py           which tables a statement touches
catalog.py       information_schema
schemas.py       which columns a table had at a place in the log
chunks.py        reading tables for snapshots
dump.py          asking the server for its log, as a replica does
server.py        what kind of server it is, where its log ends, which transactions it lacks
checks.py        what is wrong with the server's settings and our rights
"""

from headwater.capture.mysql.source import MySqlSource

__all__ = ["MySqlSource"]
