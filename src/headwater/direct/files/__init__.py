"""A file that grows, followed into a topic exactly once: rotation, truncation, restarts.

path ─▶ following.py (which file, which lines) ─▶ writing.py (one transaction: lines, position)
          ▲ rotation.py (renamed and copied files)      │
          └────────────── position.py ◀─────────────────┘
"""
