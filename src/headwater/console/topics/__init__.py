"""Topics, their records and what is searched in them."""
