"""``twist yurtproxy``: Services on an edge node."""

from __future__ import annotations

from typing import NoReturn

from twisted.application.service import IService

from yurttunnel.ops.clocks import make_steady
from yurttunnel.ops.configuration.following import follow_file
from yurttunnel.ops.ending import stop_once
from yurttunnel.ops.log import forward_standard_logging
from yurttunnel.proxy.options import Options
from yurttunnel.tunnel.reactor import IReactor, installed_reactor

__all__ = ["Options", "makeService"]


def makeService(options: Options) -> IService:
    """Build the proxy from its command line; what is wrong ends the process with a sentence."""
    reactor = installed_reactor()
    make_steady(reactor)
    stop_once(reactor)
    settings = options.settings
    if options["diagnose"]:
        _diagnose(options)
    if settings.cleanup:
        return _cleanup(reactor)
    from yurttunnel.kube.configuration import BadKubeConfiguration
    from yurttunnel.pki.directory import StateError
    from yurttunnel.proxy.process import build

    try:
        service = build(reactor, settings, follow_file(reactor, options))
    except BadKubeConfiguration as error:
        raise SystemExit(f"the Kubernetes API: {error}; see --kubeconfig and --master") from None
    except StateError as error:
        raise SystemExit(f"--state-dir: {error}") from None
    forward_standard_logging()
    return service


def _cleanup(reactor: IReactor) -> IService:
    # What speaks to the kernel takes time and memory to import.
    from yurttunnel.proxy.cleanup import cleanup

    return cleanup(reactor)


def _diagnose(options: Options) -> NoReturn:
    # What only this needs takes time and memory to import.
    from yurttunnel.ops.diagnose.command import run_diagnosis
    from yurttunnel.proxy.diagnosis import subject

    run_diagnosis(subject(options.settings), options.bundle)
