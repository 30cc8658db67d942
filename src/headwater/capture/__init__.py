"""Change data capture: every committed change of a database, once and in order, in its topic."""
