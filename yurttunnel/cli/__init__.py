"""The command ``yurttunnel``: runs the programs, and speaks to those that run."""
