"""Windows of event time: tumbling, hopping, sliding and session windows."""
