"""The command ``yurttunnel``: runs the programs, and controls running ones."""
