"""What ``--diagnose`` looks at of a service proxy."""

from __future__ import annotations

from yurttunnel.ops.diagnose.command import Subject
from yurttunnel.proxy.settings import Settings


def subject(settings: Settings) -> Subject:
    """Name the proxy's port and its files."""
    host, port = settings.pages.metrics
    files = (settings.sources.kube_config, settings.sources.file)
    return Subject(
        program="yurtproxy",
        meta_host=host,
        meta_port=port,
        directories=(),
        files=tuple(path for path in files if path is not None),
    )
