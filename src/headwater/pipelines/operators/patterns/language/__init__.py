"""The texts of a pattern: PATTERN, the expressions of DEFINE and MEASURES, and the SQL clause."""
