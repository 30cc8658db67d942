"""Commands of a project: made, started, looked at, stopped, saved."""
