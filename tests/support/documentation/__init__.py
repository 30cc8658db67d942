"""Pages of docs/ as sessions that run: blocks of Markdown, and what they print."""
