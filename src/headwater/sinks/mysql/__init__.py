"""Tables of MySQL (8.0.17 and newer) and MariaDB (10.6 and newer), kept by InnoDB.

    session   connections, locks, and what the server's errors mean
    values    types; Arrow columns to literals, and back
    tables    which table is which version; the table of positions
    store     versions of a target
    writer    a batch into one transaction

One transaction has a batch's rows and its position; everything else that changes is DDL, which
commits by itself, and is made so that a crash between any two statements is found and mended:

- **Which version a table is stands in its comment**, and goes with it when it is renamed. `promote`
  is one RENAME TABLE; nothing else says what is live. The column is_live of the positions is only
  the wish, for servers whose RENAME of two tables can stop between them.
- A table is made before its position; one without a position is empty, and is made anew. A version
  is dropped in three steps: its position says so (`fields` is empty), the table goes, the row goes.
- Columns are added before the transaction of the batch that has them.

A writer's first statements on the table take its metadata lock and then read the comment: until the
transaction ends nobody can rename it.
"""

from headwater.sinks.mysql.store import OPTIONS, TARGET_OPTIONS, MySqlStore

__all__ = ["OPTIONS", "TARGET_OPTIONS", "MySqlStore"]
