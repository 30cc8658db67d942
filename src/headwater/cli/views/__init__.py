"""Commands about SQL views."""
