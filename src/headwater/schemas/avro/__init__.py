"""Avro: parsing and canonical text, compatibility of two schemas, and a bounded decoder."""
