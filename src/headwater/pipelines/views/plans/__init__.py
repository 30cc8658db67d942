"""From the plan that Spark makes of a query to a plan over deltas: expressions stay Spark's."""
