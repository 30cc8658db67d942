"""State of operators: files, manifests, keyed rows, compatibility and metrics."""
