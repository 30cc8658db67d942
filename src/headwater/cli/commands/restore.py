"""`headwater restore DIR`: see backup.py."""

from headwater.cli.commands.backup import RESTORE

COMMANDS = {"": RESTORE}
