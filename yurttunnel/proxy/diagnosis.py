"""What ``--diagnose`` looks at of a service proxy."""

from __future__ import annotations

from yurttunnel.ops.diagnose.command import Subject
from yurttunnel.proxy.rules.iptables.chains import PROXY
from yurttunnel.proxy.settings import BackEnd, Settings


def subject(settings: Settings) -> Subject:
    """Name the proxy's port, its files, and its rules of iptables."""
    host, port = settings.pages.metrics
    files = (settings.sources.kube_config, settings.sources.file)
    return Subject(
        program="yurtproxy",
        meta_host=host,
        meta_port=port,
        directories=(),
        files=tuple(path for path in files if path is not None),
        own_lines=None if settings.back_end is BackEnd.NONE else PROXY.lines,
    )
