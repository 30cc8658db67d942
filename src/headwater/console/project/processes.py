"""The status of the processes that `headwater up` supervises."""

import dataclasses
from pathlib import Path
from typing import Any

from headwater.config import Config
from headwater.supervisor import status_file


def read_processes(config: Config) -> list[dict[str, Any]]:
    """[] if no supervisor runs here."""
    base = config.path.parent if config.path else Path.cwd()
    found = status_file.read(base / config.broker.data_dir)
    return [dataclasses.asdict(child) for child in found.children] if found else []
