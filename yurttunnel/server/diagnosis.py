"""What ``--diagnose`` looks at of a server."""

from __future__ import annotations

from yurttunnel.ops.diagnose.command import Subject
from yurttunnel.server.options import Settings, StandaloneSettings
from yurttunnel.steering.firewall.rules import TUNNEL


def subject(settings: Settings) -> Subject:
    """Name the server's port, its files, and its firewall rules."""
    mode = settings.mode
    if isinstance(mode, StandaloneSettings):
        directory, files, steered = mode.state_dir, [settings.kubelet_ca], False
    else:
        directory, steered = mode.cert_dir, mode.steering.iptables
        files = [settings.kubelet_ca, mode.kube_config, mode.client_ca]
    return Subject(
        program="yurttunnel-server",
        meta_host=settings.insecure_address,
        meta_port=settings.meta_port,
        directories=(directory,),
        files=tuple(path for path in files if path is not None),
        own_lines=TUNNEL.lines if steered else None,
    )
