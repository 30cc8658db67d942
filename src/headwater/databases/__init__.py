"""Connections to databases and their errors, where captures, sinks and event stores share them."""
