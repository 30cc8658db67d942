"""Stored patterns: definitions in a topic, which are added and changed while a pipeline runs.

row_expressions         expressions of a single row, computed in Python
definitions             a pattern as it is stored, checked and compiled
stored_patterns         definitions in their topic, for the command line
pattern_versions        the definitions in a state: which one holds from when until when
versioned_match         the search of hw.match for one of them
stored_match_operator   the step: rows and changes of definitions to matches
match_stored            hw.match_stored
recent_matches          what a pattern would have found in the last records of a topic
"""
