"""Connections to databases, where captures and sinks share them."""
