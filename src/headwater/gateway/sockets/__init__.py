"""WebSockets: the records of a topic to a client, and records of the client into it.

routes        GET /topics/T, upgraded
"""
