"""`headwater up`: starts the processes of a configuration, restarts them, ends them together.

    plan        which children there are, in which order
    supervisor  starts them when what they need is ready, stops them in order
    ├── child       one of them: started, watched, started again with growing pauses
    │   ├── readiness   how each kind says that it is ready
    │   └── lines       what it writes, line by line
    ├── lock        one supervisor per data directory
    ├── status_file <data_dir>/up.json: the status of all children, for `status` and the console
    └── guard       ends them when the supervisor itself was killed
    merged      the lines of all, one after the other

A child is a command that a user could run by hand. Nothing of a child is kept here: whoever is
killed, supervisor or child, goes on from what is stored.
"""
