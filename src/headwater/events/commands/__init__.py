"""Commands: deciders that turn them into events, sagas that answer events with them, and commands
that are scheduled for later. `application` puts them together.
"""
