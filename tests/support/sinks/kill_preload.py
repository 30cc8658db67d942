"""Imported by the process that writers are forked from: what takes long is done once, here."""

from importlib import import_module

from headwater.sinks.notifications import delivery
from support.sinks import kill_writer

for _module in ("delta.store", "parquet.store", "notifications.webhook", "notifications.email"):
    import_module(f"headwater.sinks.{_module}")
delivery._as_json(kill_writer.changed(0))  # numba's kernels
