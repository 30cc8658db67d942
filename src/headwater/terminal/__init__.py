"""What commands print on a terminal: text, tables, progress bars, and how Ctrl-C ends them."""
