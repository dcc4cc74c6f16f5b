"""``twist yurtproxy``: Services on an edge node."""

from __future__ import annotations

from twisted.application.service import IService

from yurttunnel.ops.configuration.reloading import configuration_reloader
from yurttunnel.ops.diagnose.subject import Subject
from yurttunnel.ops.log import forward_standard_logging
from yurttunnel.ops.startup import initialize
from yurttunnel.proxy.options import Options
from yurttunnel.proxy.settings import BackEnd, Settings
from yurttunnel.tunnel.reactor import IReactor

__all__ = ["Options", "makeService"]


def makeService(options: Options) -> IService:
    """Build the proxy from its command line; errors end the process with a message."""
    reactor, settings = initialize(options, subject)
    if settings.cleanup:
        return _cleanup(reactor)
    from yurttunnel.kube.configuration import BadKubeConfiguration
    from yurttunnel.pki.directory import StateError
    from yurttunnel.proxy.process import build

    try:
        service = build(reactor, settings, configuration_reloader(reactor, options))
    except BadKubeConfiguration as error:
        raise SystemExit(
            f"the Kubernetes API: {error}; behind a hub, give --master http://127.0.0.1:10261"
        ) from None
    except StateError as error:
        raise SystemExit(f"--state-dir: {error}") from None
    forward_standard_logging()
    return service


def _cleanup(reactor: IReactor) -> IService:
    """Remove what service proxies have left in this machine's firewall, and exit."""
    # The modules for the kernel take time and memory to import.
    from yurttunnel.ops.cleanup_task import CleanupTask
    from yurttunnel.ops.programs import Programs
    from yurttunnel.ops.slices import gather
    from yurttunnel.proxy.host_address import host_address
    from yurttunnel.proxy.rules.choice import remove_everything
    from yurttunnel.proxy.rules.iptables.rules import IptablesRules
    from yurttunnel.proxy.rules.nftables.rules import Nftables
    from yurttunnel.steering.failures import SteeringFailed

    programs = Programs(reactor)
    rules = (
        IptablesRules(reactor, programs, host_address),
        Nftables(reactor, programs, lambda _: gather(())),
    )
    return CleanupTask(reactor, "--cleanup", lambda: remove_everything(rules), SteeringFailed)


def subject(settings: Settings) -> Subject:
    """Return the proxy's port, files and rules for ``--diagnose``."""
    # Only this function needs these modules, which take time and memory to import.
    from yurttunnel.proxy.rules.iptables.chains import PROXY
    from yurttunnel.proxy.rules.nftables.table import NAME

    host, port = settings.pages.metrics
    files = (settings.sources.kube_config, settings.sources.file)
    return Subject(
        program="yurtproxy",
        meta_host=host,
        meta_port=port,
        directories=(),
        files=tuple(path for path in files if path is not None),
        own_lines=None if settings.back_end is BackEnd.NONE else PROXY.lines,
        own_table=NAME,
    )
