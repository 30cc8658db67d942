"""Records that pipelines write to topics exactly once: results, late rows, dead letters."""
