"""State of operators: files, manifests, keyed rows, state compatibility, metrics."""
