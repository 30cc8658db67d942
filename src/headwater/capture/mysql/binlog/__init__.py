"""The binlog's format: its events, table maps, rows, positions and GTIDs."""
