"""Derived stores (sinks): views of the log, each with the position up to which it is applied.

    contract              Store, Writer, Batch, Position: what every store promises
    settings              [sink.NAME]
    stores                the registry: from a kind of store to its class
    sql_positions         the table of positions of the SQL stores
    version_directories   versions as directories, with a link to the live one
    rows                  validation, last row by key, schema evolution, JSON
    postgres, mysql, …    one package for each kind of store

Nothing here depends on Spark: a batch is an Arrow table.
"""
