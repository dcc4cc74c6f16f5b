"""``twist yurttunnel-agent``: the edge end, with or without a cluster."""

from __future__ import annotations

from typing import NoReturn

from twisted.application.service import IService

from yurttunnel.agent import standalone
from yurttunnel.agent.options import Options
from yurttunnel.agent.process import check_identifiers
from yurttunnel.agent.settings import Settings, StandaloneSettings
from yurttunnel.ops.clocks import make_steady
from yurttunnel.ops.configuration.following import Following, follow_file
from yurttunnel.ops.ending import stop_once
from yurttunnel.ops.log import forward_standard_logging
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.identity import BadIdentity
from yurttunnel.tunnel.direct.reactor import with_transports
from yurttunnel.tunnel.reactor import IReactor, installed_reactor

__all__ = ["Options", "makeService"]


def makeService(options: Options) -> IService:
    """Build the agent from its command line; what is wrong ends the process with a sentence."""
    reactor = installed_reactor()
    make_steady(reactor)
    stop_once(reactor)
    settings = options.settings
    if options["diagnose"]:
        _diagnose(options)
    try:
        prepared = with_transports(reactor, settings.transport)
        return build(prepared, settings, follow_file(reactor, options))
    except (StateError, BadIdentity) as error:
        raise SystemExit(f"{_directory_flag(settings)}: {error}") from None


def _diagnose(options: Options) -> NoReturn:
    # What only this needs takes time and memory to import.
    from yurttunnel.agent.diagnosis import subject
    from yurttunnel.ops.diagnose.command import run_diagnosis

    run_diagnosis(subject(options.settings), options.bundle)


def build(
    reactor: IReactor, settings: Settings, following: Following[Settings] | None = None
) -> IService:
    """Compose the agent's parts."""
    check_identifiers(settings)
    mode = settings.mode
    if isinstance(mode, StandaloneSettings):
        service = standalone.build(reactor, settings, mode, following)
    else:
        # What only a cluster needs costs memory: an agent without one does not load it.
        from yurttunnel.agent import cluster
        from yurttunnel.kube.configuration import BadKubeConfiguration
        from yurttunnel.pki.authorities import BadBundle

        try:
            service = cluster.build(reactor, settings, mode, following)
        except BadKubeConfiguration as error:
            raise SystemExit(
                f"the Kubernetes API: {error}; see --kube-config, or add --standalone where there"
                " is no cluster"
            ) from None
        except BadBundle as error:
            raise SystemExit(f"the authorities of the Kubernetes API: {error}") from None
    forward_standard_logging()
    return service


def _directory_flag(settings: Settings) -> str:
    return "--state-dir" if isinstance(settings.mode, StandaloneSettings) else "--cert-dir"
