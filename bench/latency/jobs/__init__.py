"""The jobs that are measured, once per system. Each runs in the environment of its system."""
