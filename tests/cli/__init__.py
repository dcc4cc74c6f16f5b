"""The command ``yurttunnel``."""
