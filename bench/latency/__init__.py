"""Latency from one topic to another beside other stream processors, each alone on the machine."""
