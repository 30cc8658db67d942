"""Imported by the process that writers are forked from: what takes long is done once, here."""

from importlib import import_module

import kill_writer

from headwater.sinks import sending

for _kind in ("delta", "parquet", "webhook", "email"):
    import_module(f"headwater.sinks.{_kind}")
sending._as_json(kill_writer.changed(0))  # numba's kernels
