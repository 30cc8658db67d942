"""The event store over HTTP: appends, reads, subscriptions, and states as of then.

routes      GET and POST /events, /events/STREAM, /events/STREAM/state, /streams, /categories
append_bodies   bodies of appends, as checked requests
parameters  what a read asks for: bounds, types, tags, form
pages       some events as JSON, bounded by number and bytes
streaming   server-sent events and NDJSON
feed        the end of the store, read once for all who follow it
rights      the right to a category is the right to its topic
opened      the store itself, and the threads that wait for it
"""
