"""Nexmark: an auction site's persons, auctions and bids, and eight questions about them.

The questions (q1 to q8) are those of the NEXMark suite; every answer is checked value by value
against DuckDB over the same events. The events are our own: numbered, seeded by their number, so
that any stretch of them can be made again.
"""
