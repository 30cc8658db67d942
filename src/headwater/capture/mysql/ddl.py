"""DDL in the log: which tables a statement touches, and how.

No parser of SQL: only the first words and the names behind them are understood. A statement
that is not understood can therefore not stop a capture; the catalog shows what a table looks like.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

Name: TypeAlias = tuple[str, str]  # (schema, table)

_TOKEN = re.compile(
    r"""
      (?P<space>\s+|\#[^\n]*|--[ \t][^\n]*|--\n)
    | (?P<code>/\*M?!\d*|\*/)              # what stands in /*!50000 … */ is executed
    | (?P<comment>/\*.*?(?:\*/|\Z))
    | (?P<quoted>`(?:[^`]|``)*`|"(?:[^"]|"")*")
    | (?P<string>'(?:[^'\\]|\\.|'')*')
    | (?P<word>[\w$\u0080-\uffff]+)
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)

# Words that may stand between the verb and TABLE; between TABLE and the name. The latter must all
# be reserved ones: a table may well be called `online`.
_BEFORE_TABLE = frozenset({"ONLINE", "OFFLINE", "IGNORE", "OR", "REPLACE"})
_BEFORE_NAME = frozenset({"IF", "NOT", "EXISTS"})
_DATA_VERBS = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "MERGE"})


@dataclass(frozen=True, slots=True)
class Ddl:
    """`kind`: "create", "alter", "drop", "rename", "truncate"; "drop database" has no table; "data"
    is a statement that changes rows without the log having them.
    """

    kind: str
    tables: tuple[Name, ...]  # all that it touches: of a rename both the old and the new
    dropped: tuple[Name, ...] = ()  # these names no longer mean the tables that they did …
    made: tuple[Name, ...] = ()  # … and these, maybe the same ones, mean others now

    def lower(self) -> "Ddl":
        """As a server with lower_case_table_names knows the tables."""
        tables, dropped, made = (
            tuple((schema.lower(), name.lower()) for schema, name in names)
            for names in (self.tables, self.dropped, self.made)
        )
        return Ddl(self.kind, tables, dropped, made)


def parse(statement: str, database: str) -> Ddl | None:
    """None: nothing that concerns a table. `database` is where names without one belong."""
    tokens = _tokens(statement)
    verb = next(tokens, ("", ""))[1].upper()
    if verb == "SET":  # MariaDB: SET STATEMENT lock_wait_timeout = 5 FOR ALTER TABLE …
        verb = _behind_settings(tokens)
    if verb in _DATA_VERBS:
        return Ddl("data", tuple((schema or database, name) for schema, name in _all_names(tokens)))
    if verb not in ("CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE"):
        return None
    words = list(tokens)
    at = 0
    is_replacing = False
    while at < len(words) and verb != "TRUNCATE" and _is_word(words[at], _BEFORE_TABLE):
        is_replacing = is_replacing or words[at][1].upper() == "REPLACE"
        at += 1
    if at == len(words):
        return None
    what = words[at][1].upper()
    if verb == "DROP" and what in ("DATABASE", "SCHEMA"):
        words = [word for word in words[at + 1 :] if not _is_word(word, {"IF", "EXISTS"})]
        names = _names(words, "")
        return Ddl("drop database", ((names[0][1], ""),)) if names else None
    if what == "TEMPORARY":
        return None
    if what in ("UNIQUE", "FULLTEXT", "SPATIAL", "INDEX"):  # CREATE INDEX … ON t, DROP INDEX … ON t
        at = next((i for i in range(at, len(words)) if _is_word(words[i], {"ON"})), len(words))
        names = _names(words[at + 1 :], database)
        return Ddl("alter", tuple(names[:1])) if names else None
    if what in ("TABLE", "TABLES"):
        words = words[at + 1 :]
    elif verb == "TRUNCATE":  # the word TABLE may be left out
        words = words[at:]
    else:
        return None
    while words and _is_word(words[0], _BEFORE_NAME):
        words = words[1:]
    names = _names(words, database)
    if not names:
        return None
    kind = verb.lower()
    if kind == "rename":
        return _renamed(kind, _names(words, database, {"TO"}))
    if kind == "drop":
        return Ddl(kind, tuple(names), dropped=tuple(names))
    name = names[0]
    if kind == "alter" and (new := _new_names(words, database)):
        return _renamed(kind, [name, *new])
    replaced = (name,) if is_replacing else ()
    return Ddl(kind, (name,), dropped=replaced, made=replaced)


def _renamed(kind: str, names: list[Name]) -> Ddl:
    """One after the other: old, new, old, new."""
    made: dict[Name, None] = {}
    for old, new in zip(names[::2], names[1::2], strict=False):
        made.pop(old, None)
        made[new] = None
    return Ddl(kind, tuple(dict.fromkeys(names)), tuple(dict.fromkeys(names[::2])), tuple(made))


def _behind_settings(tokens: Iterator[tuple[str, str]]) -> str:
    """The verb behind SET STATEMENT variable = value, … FOR."""
    if next(tokens, ("", ""))[1].upper() != "STATEMENT":
        return ""
    depth = 0
    for kind, text in tokens:
        depth += (text == "(") - (text == ")")
        if depth == 0 and _is_word((kind, text), {"FOR"}):
            return next(tokens, ("", ""))[1].upper()
    return ""


def is_word(statement: str, word: str) -> bool:
    """Whether the statement begins with this word."""
    return next(_tokens(statement), ("", ""))[1].upper() == word


def _tokens(statement: str) -> Iterator[tuple[str, str]]:
    for match in _TOKEN.finditer(statement):
        kind = match.lastgroup or ""
        if kind not in ("space", "comment", "code"):
            yield kind, match.group()


def _is_word(token: tuple[str, str], words: frozenset[str] | set[str]) -> bool:
    return token[0] == "word" and token[1].upper() in words


def _names(
    words: list[tuple[str, str]], database: str, separators: set[str] | None = None
) -> list[Name]:
    """Names in a list: a, b.c, `d`.`e` — separated by commas, or by the words in `separators`."""
    names: list[tuple[str, str]] = []
    at = 0
    while at < len(words) and words[at][0] in ("word", "quoted"):
        name = _plain(words[at])
        schema = database
        at += 1
        if at + 1 < len(words) and words[at][1] == ".":
            schema, name = name, _plain(words[at + 1])
            at += 2
        names.append((schema, name))
        while at < len(words) and _is_word(words[at], {"WAIT", "NOWAIT"}):  # MariaDB: … WAIT 5 TO …
            at += 2 if words[at][1].upper() == "WAIT" else 1
        if at < len(words) and (
            words[at][1] == "," or (separators and _is_word(words[at], separators))
        ):
            at += 1
        else:
            break
    return names


def _new_names(words: list[tuple[str, str]], database: str) -> list[tuple[str, str]]:
    """ALTER TABLE a …, RENAME [TO|AS|=] b — but not RENAME COLUMN, INDEX, KEY."""
    for at, token in enumerate(words):
        if _is_word(token, {"RENAME"}) and at + 1 < len(words):
            rest = words[at + 1 :]
            if _is_word(rest[0], {"COLUMN", "INDEX", "KEY"}):
                continue
            if _is_word(rest[0], {"TO", "AS"}) or rest[0][1] == "=":
                rest = rest[1:]
            return _names(rest, database)[:1]
    return []


def _all_names(tokens: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    """Everything that could be a table's name in a statement that changes rows."""
    words = list(tokens)
    names: list[tuple[str, str]] = []
    for at, (kind, _) in enumerate(words):
        if kind in ("word", "quoted"):
            dotted = at >= 2 and words[at - 1][1] == "."
            names.append((_plain(words[at - 2]) if dotted else "", _plain(words[at])))
    return names


def _plain(token: tuple[str, str]) -> str:
    kind, text = token
    if kind != "quoted":
        return text
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)
