"""Configs of topics, groups and the broker, as clients describe and alter them."""
