"""`headwater restore DIR`: see backup.py."""

from headwater.cli.backup import RESTORE

COMMANDS = {"": RESTORE}
