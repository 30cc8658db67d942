"""The tables of an event store, for both databases.

`headwater_events` has the columns of an outbox (docs/capture.md): a capture that follows it
publishes each event to the topic of its category, with its stream as key. Everything else can be
derived again (tags, snapshots), or is state of the application's own processes.
"""

import re
from typing import Final

SCHEMA_VERSION: Final = 1

TABLES: Final = """
CREATE TABLE IF NOT EXISTS headwater_events (
  position {bigint} PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  aggregatetype TEXT NOT NULL,
  aggregateid TEXT NOT NULL,
  version BIGINT NOT NULL,
  type TEXT NOT NULL,
  schema_version INTEGER NOT NULL,
  payload TEXT NOT NULL,
  tags TEXT NOT NULL,
  metadata TEXT,
  command_id TEXT,
  at_ms BIGINT NOT NULL,
  UNIQUE (aggregateid, version)
);
CREATE INDEX IF NOT EXISTS headwater_events_category ON headwater_events (aggregatetype, position);
CREATE INDEX IF NOT EXISTS headwater_events_type ON headwater_events (type, position);
CREATE INDEX IF NOT EXISTS headwater_events_streams ON headwater_events
  (aggregatetype, aggregateid) WHERE version = 1;
CREATE TABLE IF NOT EXISTS headwater_event_tags (
  tag TEXT NOT NULL, position BIGINT NOT NULL, PRIMARY KEY (tag, position)
) {without_rowid};
CREATE TABLE IF NOT EXISTS headwater_commands (
  id TEXT PRIMARY KEY, first_position BIGINT NOT NULL, last_position BIGINT NOT NULL,
  versions TEXT NOT NULL, at_ms BIGINT NOT NULL
) {without_rowid};
CREATE TABLE IF NOT EXISTS headwater_snapshots (
  decider TEXT NOT NULL, stream TEXT NOT NULL, version BIGINT NOT NULL, position BIGINT NOT NULL,
  state TEXT NOT NULL, PRIMARY KEY (decider, stream)
);
CREATE TABLE IF NOT EXISTS headwater_progress (
  name TEXT PRIMARY KEY, position BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS headwater_scheduled (
  id TEXT PRIMARY KEY, due_ms BIGINT NOT NULL, type TEXT NOT NULL, payload TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS headwater_scheduled_due ON headwater_scheduled (due_ms);
CREATE TABLE IF NOT EXISTS headwater_refused_commands (
  id TEXT PRIMARY KEY, origin TEXT NOT NULL, type TEXT NOT NULL, payload TEXT NOT NULL,
  reason TEXT NOT NULL, at_ms BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS headwater_event_store (name TEXT PRIMARY KEY, value TEXT NOT NULL)
"""

# What a store has, apart from triggers; those of an older one are added when it is opened.
PARTS: Final = tuple(re.findall(r"CREATE (?:TABLE|INDEX) IF NOT EXISTS (\w+)", TABLES))
IMMUTABLE: Final = ("headwater_events", "headwater_event_tags")
REFUSAL: Final = "events are immutable: append a compensating event instead"
