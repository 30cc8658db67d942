"""The web application: connections, sessions, security, rendering."""
