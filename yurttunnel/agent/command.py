"""``twist yurttunnel-agent``: the edge end, with or without a cluster."""

from __future__ import annotations

from twisted.application.service import IService

from yurttunnel.agent import standalone
from yurttunnel.agent.options import Options
from yurttunnel.agent.process import check_identifiers
from yurttunnel.agent.settings import Settings, StandaloneSettings
from yurttunnel.ops.configuration.reloading import ConfigurationReloader, configuration_reloader
from yurttunnel.ops.diagnose.subject import Subject
from yurttunnel.ops.log import forward_standard_logging
from yurttunnel.ops.startup import initialize
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.names import BadIdentity
from yurttunnel.pki.token import BadToken
from yurttunnel.tunnel.direct.reactor import with_transports
from yurttunnel.tunnel.reactor import IReactor

__all__ = ["Options", "makeService"]


def makeService(options: Options) -> IService:
    """Build the agent from its command line; errors end the process with a message."""
    reactor, settings = initialize(options, subject)
    try:
        prepared = with_transports(reactor, settings.transport)
        return build(prepared, settings, configuration_reloader(reactor, options))
    except (StateError, BadIdentity) as error:
        raise SystemExit(f"{_directory_flag(settings)}: {error}") from None
    except BadToken as error:
        raise SystemExit(str(error)) from None


def subject(settings: Settings) -> Subject:
    """Return the agent's port, its files and its secret, for ``--diagnose``."""
    mode = settings.mode
    if isinstance(mode, StandaloneSettings):
        directory, file, secret = mode.state_dir, mode.join_token_file, mode.join_token
    else:
        directory, file, secret = mode.cert_dir, mode.kube_config, None
    return Subject(
        program="yurttunnel-agent",
        meta_host=settings.meta_host,
        meta_port=settings.meta_port,
        directories=(directory,),
        files=() if file is None else (file,),
        secret_flags=("--join-token",),
        secrets=() if secret is None else (secret,),
    )


def build(
    reactor: IReactor, settings: Settings, following: ConfigurationReloader[Settings] | None = None
) -> IService:
    """Compose the agent's parts."""
    check_identifiers(settings)
    mode = settings.mode
    if isinstance(mode, StandaloneSettings):
        service = standalone.build(reactor, settings, mode, following)
    else:
        # Imported late: an agent without a cluster saves the memory.
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
