"""The stream of the binlog's transactions, with the schema that each table had at its time."""
