"""The SQL that a capture puts into the database: a log, and triggers that fill it.

The log holds values as they are in the row, each in its own column without a type (c0, c1, …): no
function has to turn them into text, so nothing is lost (reals, blobs, NUL) and the writer pays
least. `t` is the number of the table's version: its columns as they were when its triggers were
made. What a log row has in c0, c1, … (n columns):

    c  created      the new row
    d  deleted      the old row
    u  updated      the old row, and from c<n> on the new one
    r  refreshed    the row as it is now, after a time in which the log may be wrong about it
    k  deleted      only the key; the same for a row that is no more
    s, x, f, o      marks: a table is new or altered, is dropped, has failed (c0: why); the log
    begins

REPLACE (as INSERT OR REPLACE, UPDATE OR REPLACE or a constraint's ON CONFLICT) deletes rows without
firing delete triggers unless the writer has set recursive_triggers. So a trigger in front of the
change records the rows in its way in a second table, and the one behind it logs those deleted:
had the change failed, been ignored or become an upsert, that trigger would find them in place. What
an earlier statement has left there is taken away first.

The conflict clause of an outer statement overrides those inside of triggers. So neither table has a
constraint that a row could violate.
"""

from dataclasses import dataclass

from headwater.capture.sqlite.catalog import Definition, quoted

PREFIX = "_headwater_"
NOW = "julianday('now')"
MARKS = ("s", "x", "f", "o")
KINDS = ("insert", "update", "delete", "before_insert", "before_update")


@dataclass(frozen=True, slots=True)
class Names:
    """What everything of one capture is called in the database."""

    prefix: str

    @property
    def log(self) -> str:
        return quoted(self.prefix + "log")

    @property
    def replaced(self) -> str:
        return quoted(self.prefix + "replaced")

    @property
    def versions(self) -> str:
        return quoted(self.prefix + "versions")

    @property
    def state(self) -> str:
        return quoted(self.prefix + "state")

    def trigger(self, version: int, kind: str) -> str:
        return f"{self.prefix}{version}_{kind}"


def names_of(capture: str) -> Names:
    return Names(f"{PREFIX}{capture}_")


def log_tables(names: Names, columns: int) -> list[str]:
    """For tables that have at most so many columns."""
    # No AUTOINCREMENT: its sqlite_sequence could never be removed again. The highest row of the log
    # is never deleted, and so an id is never given twice.
    return [
        f"CREATE TABLE {names.log} (id INTEGER PRIMARY KEY, t, op, at, {_cells(0, 2 * columns)})",
        f"CREATE TABLE {names.replaced} (t, r, {_cells(0, columns)})",
        f"CREATE TABLE {names.versions} (t INTEGER PRIMARY KEY, name, definition, is_current)",
        f"CREATE TABLE {names.state} (name, value)",
    ]


def triggers(names: Names, table: Definition, version: int) -> dict[str, str]:
    """Name and SQL of each trigger of a table, in the order in which they have to be made: of two
    triggers for the same event SQLite fires the younger first, and ours must come before a user's
    that changes the row again.
    """
    columns = [name for name, _, _ in table.columns]
    width = len(columns)
    on = quoted(table.name)
    new = _row("NEW", columns)
    old = _row("OLD", columns)

    def log(op: str, values: str, count: int) -> str:
        cells = _cells(0, count)
        into = f"INSERT INTO {names.log}(t, op, at, {cells})"
        return f"{into} VALUES ({version}, '{op}', {NOW}, {values});"

    bodies = {
        "insert": f"AFTER INSERT ON {on} BEGIN {_log_replaced(names, table, version)}"
        f"{log('c', new, width)} END",
        "update": f"AFTER UPDATE ON {on} BEGIN "
        f"{_log_replaced(names, table, version, is_update=True)}"
        f"{log('u', f'{old}, {new}', 2 * width)}"
        f"{_log_referring_to_itself(names, table, version)} END",
        "delete": f"AFTER DELETE ON {on} BEGIN {_forget_deleted(names, table, version)}"
        f"{log('d', old, width)} END",
    }
    conflict = _conflict(table)
    if conflict:
        note = (
            f"DELETE FROM {names.replaced} WHERE t = {version};"
            f" INSERT INTO {names.replaced}(t, r, {_cells(0, width)})"
            f" SELECT {version}, {_rowid(table, 'o')}, {_row('o', columns)} FROM {on} AS o"
        )
        bodies["before_insert"] = f"BEFORE INSERT ON {on} BEGIN {note} WHERE {conflict}; END"
        watched = {column for unique in table.uniques for column, _ in unique} | set(table.key)
        if watched:
            of = " OF " + ", ".join(quoted(column) for column in columns if column in watched)
            if table.has_generated_unique:  # which no UPDATE names, yet it changes
                of = ""
            bodies["before_update"] = (
                f"BEFORE UPDATE{of} ON {on} BEGIN {note}"
                f" WHERE ({conflict}) AND NOT ({_same_row(table, 'o', 'OLD')}); END"
            )
    return {
        names.trigger(
            version, kind
        ): f"CREATE TRIGGER {quoted(names.trigger(version, kind))} {body}"
        for kind, body in bodies.items()
    }


def _cells(first: int, count: int) -> str:
    return ", ".join(f"c{i}" for i in range(first, first + count))


def _row(of: str, columns: list[str]) -> str:
    return ", ".join(f"{of}.{quoted(column)}" for column in columns)


def _rowid(table: Definition, of: str) -> str:
    return f"{of}.{table.rowid}" if table.rowid else "NULL"


def _same_row(table: Definition, left: str, right: str) -> str:
    if table.rowid:
        return f"{left}.{table.rowid} = {right}.{table.rowid}"
    return " AND ".join(f"{left}.{quoted(key)} = {right}.{quoted(key)}" for key in table.key)


def _conflict(table: Definition) -> str:
    """Whether a row `o` cannot stay beside the new one. May be true for too many rows (the index
    may be partial; a rowid that SQLite has still to choose is -1): it is looked again afterwards.
    """
    uniques = [
        " AND ".join(
            f"o.{quoted(column)} = NEW.{quoted(column)} COLLATE {quoted(collation)}"
            for column, collation in unique
        )
        for unique in table.uniques
    ]
    if table.rowid:
        uniques.insert(0, f"o.{table.rowid} = NEW.{table.rowid}")
    return " OR ".join(f"({unique})" for unique in uniques)


def _log_replaced(names: Names, table: Definition, version: int, *, is_update: bool = False) -> str:
    if not _conflict(table):
        return ""
    width = len(table.columns)
    if table.rowid:
        is_new = f"NEW.{table.rowid} = p.r"
        is_there = f"o.{table.rowid} = p.r"
    else:
        at = {name: i for i, (name, _, _) in enumerate(table.columns)}
        is_new = " AND ".join(f"NEW.{quoted(key)} = p.c{at[key]}" for key in table.key)
        is_there = " AND ".join(f"o.{quoted(key)} = p.c{at[key]}" for key in table.key)
    if is_update:  # the row under its old key was in no row's way
        is_new += f" AND NOT ({_same_row(table, 'OLD', 'NEW')})"
    cells = ", ".join(f"p.c{i}" for i in range(width))
    return (
        f"INSERT INTO {names.log}(t, op, at, {_cells(0, width)})"
        f" SELECT {version}, 'd', {NOW}, {cells} FROM {names.replaced} AS p WHERE p.t = {version}"
        f" AND (({is_new}) OR NOT EXISTS"
        f" (SELECT 1 FROM {quoted(table.name)} AS o WHERE {is_there}));"
        f" DELETE FROM {names.replaced} WHERE t = {version}; "
    )


def _log_referring_to_itself(names: Names, table: Definition, version: int) -> str:
    """ON UPDATE changes a row that refers to itself before this trigger comes, which logs the row
    as it was before that: so it is logged once more.
    """
    if not table.is_referring or not (table.rowid or table.key):
        return ""
    columns = [name for name, _, _ in table.columns]
    is_other = " OR ".join(f"o.{quoted(name)} IS NOT NEW.{quoted(name)}" for name in columns)
    return (
        f" INSERT INTO {names.log}(t, op, at, {_cells(0, 2 * len(columns))})"
        f" SELECT {version}, 'u', {NOW}, {_row('NEW', columns)}, {_row('o', columns)}"
        f" FROM {quoted(table.name)} AS o WHERE {_same_row(table, 'o', 'NEW')} AND ({is_other});"
    )


def _forget_deleted(names: Names, table: Definition, version: int) -> str:
    """What a delete trigger sees is logged by it: with recursive_triggers REPLACE fires it too."""
    if not _conflict(table):
        return ""
    if table.rowid:
        is_deleted = f"r = OLD.{table.rowid}"
        is_there = f"o.{table.rowid} = {names.replaced}.r"
    else:
        at = {name: i for i, (name, _, _) in enumerate(table.columns)}
        is_deleted = " AND ".join(f"OLD.{quoted(key)} = c{at[key]}" for key in table.key)
        is_there = " AND ".join(
            f"o.{quoted(key)} = {names.replaced}.c{at[key]}" for key in table.key
        )
    forget = f"DELETE FROM {names.replaced} WHERE t = {version} AND {is_deleted}; "
    if not table.is_referring:
        return forget
    # ON DELETE CASCADE may be deleting the very row that an UPDATE OR REPLACE is about, because of
    # a row that was in its way. No trigger behind the update comes then, to log that one.
    cells = _cells(0, len(table.columns))
    are_gone = (
        f"t = {version} AND NOT EXISTS (SELECT 1 FROM {quoted(table.name)} AS o WHERE {is_there})"
    )
    return (
        f"{forget}INSERT INTO {names.log}(t, op, at, {cells})"
        f" SELECT t, 'd', {NOW}, {cells} FROM {names.replaced} WHERE {are_gone};"
        f" DELETE FROM {names.replaced} WHERE {are_gone}; "
    )
