"""Windows of event time: tumbling, hopping, sliding, sessions."""
