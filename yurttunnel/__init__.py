"""A reverse tunnel that makes edge Kubernetes nodes reachable from the cloud."""

__version__ = "0.1.0"
"""The version of the package; setup.cfg takes it from here."""
