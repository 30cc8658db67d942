"""The web application: sessions, security, rendering."""
