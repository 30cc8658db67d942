"""`headwater restore DIR`: see backup.py."""

from headwater.cli.commands.project.backup import RESTORE

COMMANDS = {"": RESTORE}
