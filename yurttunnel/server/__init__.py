"""The cloud end: the registry of agents' sessions, and the listeners for agents and callers."""
