"""Monitoring of the broker: metrics, health probes, log lines, lag of groups and its alerts."""
