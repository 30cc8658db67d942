"""`headwater up`: starts the processes of a configuration, restarts them, ends them together.

    plan        which children there are, in which order
    supervisor  starts them when what they need is ready, stops them in order
    ├── child       one of them: started, watched, started again with growing pauses
    │   ├── readiness   how each kind reports that it is ready
    │   └── lines       what it writes, line by line
    ├── lock        one supervisor per data directory
    ├── status_file <data_dir>/up.json: the status of all children, for `status` and the console
    └── guard       ends them when the supervisor itself was killed
    log_mux     the lines of all, one after the other

A child is a command that a user could run by hand. No state of a child is held here: a
supervisor or child that is killed continues from what is stored.
"""
