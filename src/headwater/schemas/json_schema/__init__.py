"""JSON Schema: parsing and canonical text, compatibility of two schemas, validation of values."""
