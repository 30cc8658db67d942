"""Derived stores: each one a view of the log that says how far it has come.

    contract    what a store promises, and the words in which it is spoken to
    reducing    a batch to the last row of each key
    settings    [sink.NAME]
    stores      from a kind to the module that keeps such a store
    …           one module for each kind of store

Nothing here knows Spark: a batch is an Arrow table.
"""
