"""The bundle of ``--diagnose``."""
