"""State of groups, captures, pipelines and stores, read for the command line and the console."""
