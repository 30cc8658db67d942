"""Tables of MySQL (8.0.17 and newer) and MariaDB (10.6 and newer), stored by InnoDB.

    session   connections, locks, and the mapping of server errors
    values    types; Arrow columns to literals, and back
    tables    which table is which version; the table of positions
    store     versions of a target
    writer    a batch into one transaction

One transaction has a batch's rows and its position; everything else that changes is DDL, which
commits implicitly; a crash between any two statements is detected and repaired:

- **The comment of a table has its version**, and moves with it when it is renamed. `promote` is one
  RENAME TABLE; nothing else decides what is live. The column is_live of the positions is only the
  intent, for servers on which a RENAME of two tables can stop between them.
- A table is created before its position; one without a position is empty, and is created again. A
  version is dropped in three steps: `fields` in its position is emptied, the table is dropped, the
  row is deleted.
- Columns are added before the transaction of the batch that has them.

A writer's first statements on the table take its metadata lock and then read the comment: until the
transaction ends no session can rename it.
"""

from headwater.sinks.mysql.store import OPTIONS, TARGET_OPTIONS, MySqlStore

__all__ = ["OPTIONS", "TARGET_OPTIONS", "MySqlStore"]
