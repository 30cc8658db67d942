"""Runs a command as another user, asked to end when the process that started it dies.

    python -m headwater.demo.unprivileged UID GID PARENT_PID COMMAND …

Only root can, and the Python that root runs need not be one that the other user may run: so it
gives its rights up here, and then is the command.
"""

import os
import sys

from headwater.supervisor import parent_death


def main(uid: str, gid: str, parent: str, *command: str) -> None:
    os.setgroups([])
    os.setgid(int(gid))
    os.setuid(int(uid))
    # After the change of user, with which the kernel forgets the parent-death signal.
    parent_death.main(int(parent), [*command])


if __name__ == "__main__":
    main(*sys.argv[1:])
