"""What the rows of all stores have in common: validation, schema evolution, reduction, JSON."""
