"""``twist yurttunnel-server``: the cloud end, with or without a cluster."""

from __future__ import annotations

from twisted.application.service import IService

from yurttunnel.ops.configuration.reloading import ConfigurationReloader, configuration_reloader
from yurttunnel.ops.diagnose.subject import Subject
from yurttunnel.ops.log import forward_standard_logging
from yurttunnel.ops.startup import initialize
from yurttunnel.pki.authorities import BadBundle
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.revocation import RevocationFailed, revoke_node
from yurttunnel.server import standalone
from yurttunnel.server.frontends.kubelet.middleware import BadMiddleware
from yurttunnel.server.options import ClusterSettings, Options, Settings, StandaloneSettings
from yurttunnel.steering.marks import SocketMarker
from yurttunnel.tunnel.direct.reactor import with_transports
from yurttunnel.tunnel.reactor import IReactor

__all__ = ["Options", "makeService"]


def makeService(options: Options) -> IService:
    """Build the server from its command line; errors end the process with a message."""
    reactor, settings = initialize(options, subject)
    mode = settings.mode
    try:
        if isinstance(mode, StandaloneSettings) and mode.revoke_node is not None:
            print(revoke_node(reactor, mode.state_dir, mode.revoke_node))
            raise SystemExit(0)
        if settings.cleanup_iptables:
            return _cleanup(reactor)
        prepared = with_transports(reactor, settings.transport, _prepare(mode))
        return build(prepared, settings, configuration_reloader(reactor, options))
    except StateError as error:
        raise SystemExit(f"{_directory_flag(settings)}: {error}") from None
    except RevocationFailed as error:
        raise SystemExit(f"--revoke-node: {error}") from None
    except BadBundle as error:
        raise SystemExit(f"{_bundle_flag(settings, str(error))}: {error}") from None
    except BadMiddleware as error:
        raise SystemExit(f"--middleware: {error}") from None


def _cleanup(reactor: IReactor) -> IService:
    """Remove the firewall rules that servers have left on this machine, and exit."""
    # Imported late, because these modules take time and memory.
    from yurttunnel.ops.cleanup_task import CleanupTask
    from yurttunnel.ops.programs import Programs
    from yurttunnel.steering.failures import SteeringFailed
    from yurttunnel.steering.firewall.tunnel import remove_everything
    from yurttunnel.steering.netlink.address_sets import AddressSets
    from yurttunnel.steering.netlink.worker import KernelWorker

    sets = AddressSets(KernelWorker(reactor).run, reactor)
    return CleanupTask(
        reactor,
        "--cleanup-iptables",
        lambda: remove_everything(Programs(reactor), sets),
        SteeringFailed,
    )


def _prepare(mode: StandaloneSettings | ClusterSettings) -> SocketMarker | None:
    """Return the marker that exempts outgoing connections from our redirection."""
    if isinstance(mode, ClusterSettings) and mode.steering.iptables:
        return SocketMarker()
    return None


def subject(settings: Settings) -> Subject:
    """Return the server's port, files and firewall rules, for ``--diagnose``."""
    # Imported late, because only this needs them, and they take time and memory.
    from yurttunnel.steering.firewall.rules import TUNNEL
    from yurttunnel.steering.netlink.connection_tracking import TABLE

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
        own_table=TABLE.removesuffix("-"),
    )


def build(
    reactor: IReactor, settings: Settings, following: ConfigurationReloader[Settings] | None = None
) -> IService:
    """Compose the server's parts."""
    mode = settings.mode
    if isinstance(mode, StandaloneSettings):
        server = standalone.build(reactor, settings, mode, following)
    else:
        # Imported late, because these modules take time and memory.
        from yurttunnel.kube.configuration import BadKubeConfiguration
        from yurttunnel.server.in_cluster import ClusterServer

        try:
            server = ClusterServer(reactor, settings, mode, following).service()
        except BadKubeConfiguration as error:
            raise SystemExit(
                f"the Kubernetes API: {error}, or add --standalone where there is no cluster"
            ) from None
    forward_standard_logging()
    return server


def _directory_flag(settings: Settings) -> str:
    return "--state-dir" if isinstance(settings.mode, StandaloneSettings) else "--cert-dir"


def _bundle_flag(settings: Settings, error: str) -> str:
    """Return the flag that names the file of authorities in ``error``."""
    client_ca = None if isinstance(settings.mode, StandaloneSettings) else settings.mode.client_ca
    for flag, path in (("--kubelet-ca", settings.kubelet_ca), ("--client-ca-file", client_ca)):
        if path is not None and str(path) in error:
            return flag
    return "the authorities of the Kubernetes API"
