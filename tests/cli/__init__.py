"""The command line, driven as people and scripts do."""
