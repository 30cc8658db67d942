"""The search for matches: the automaton, its conditions, and the state of each key."""
