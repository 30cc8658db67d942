"""The compacted topic `__headwater_positions`: how far captures and sinks are, by key."""

from typing import Final

POSITIONS_TOPIC: Final = "__headwater_positions"
POSITIONS_CONFIG: Final = {"cleanup.policy": "compact"}
