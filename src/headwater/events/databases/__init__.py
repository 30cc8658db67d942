"""Databases of event stores behind one contract (session.py): SQLite and PostgreSQL."""
