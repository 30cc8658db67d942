"""Change data capture: every committed change of a database, once and in order, in its topic.

ARCHITECTURE.md tells the life of a captured change; `contract.py` is where to begin reading.
"""
