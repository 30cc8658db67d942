"""The status of the processes that `headwater up` supervises."""

import dataclasses
from pathlib import Path
from typing import Any

from headwater.config import Config
from headwater.supervisor import plan, status_file


def data_dir_of(config: Config) -> Path:
    """Where the supervisor of this project reports, and takes requests."""
    return plan.data_dir_of(config)


def read_processes(config: Config) -> list[dict[str, Any]]:
    """[] if no supervisor runs here."""
    found = status_file.read(data_dir_of(config))
    return [dataclasses.asdict(child) for child in found.children] if found else []
