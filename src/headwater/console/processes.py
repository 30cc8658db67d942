"""What `headwater up` tells of the processes that it looks after, in `up.json`."""

from pathlib import Path
from typing import Any

import orjson

from headwater.config import Config


def read_processes(config: Config) -> list[dict[str, Any]]:
    """[] if nobody supervises here, or the file cannot be read."""
    base = config.path.parent if config.path else Path.cwd()
    try:
        told = orjson.loads((base / config.broker.data_dir / "up.json").read_bytes())
        return [dict(each) for each in told["children"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
