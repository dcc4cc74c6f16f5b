"""A reverse tunnel that makes edge Kubernetes nodes reachable from the cloud."""

from importlib.metadata import version as _version

__version__ = _version("yurttunnel")
"""The version of the installed package, as in its metadata."""
