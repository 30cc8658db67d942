"""Schemas of records, looked up by the id before a value, and values decoded with them.

lookup        SchemaLookup: ids to parsed schemas, bounded; values to JSON
registration  schemas registered before records are written by them
sources       where schemas are: the topic `_schemas`, or a registry over HTTP
"""
