"""One module for each command of the command line, imported when the command is called."""
