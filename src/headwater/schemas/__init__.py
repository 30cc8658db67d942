"""Schemas of records: Avro, JSON Schema and Protobuf, their compatibility, and their registry.

    schema          a schema with its references, and `parse`
    compatibility   levels: which versions are compared, and which way
    avro, json_schema, protobuf    each type: parsing, canonical text, differences, values
    registry        subjects and versions, stored in the topic `_schemas`
    wire_format     the id of a schema before a value
    codes           error codes

Nothing here speaks HTTP: the gateway does, and `schema_lookup` asks a registry elsewhere.
"""
