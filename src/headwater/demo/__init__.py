"""`headwater demo`: the shop of examples/shop with a PostgreSQL and a load of its own, watched.

    running     one run, from an empty directory to nothing left running
    ├── project     the directory that all of it runs in
    ├── postgres    the database server (unprivileged: when root starts it)
    ├── processes   `headwater up` and the load, started again when they are killed
    ├── watching    how far every derived store is, and how long a change takes
    ├── view        what a person sees of that
    └── summary     what it came to
    load        a process: the shop's application, its customers and their phones
    └── shop        what they do, the same for the same seed

The children that a configuration asks for are run by `headwater up`; the demo adds what a user has:
a database, and people who use it.
"""
