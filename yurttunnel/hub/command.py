"""``twist yurthub``: the node's way to the Kubernetes API."""

from __future__ import annotations

from typing import NoReturn

from twisted.application.service import IService

from yurttunnel.hub.filters.chain import BadFilter
from yurttunnel.hub.options import Options
from yurttunnel.ops.clocks import make_steady
from yurttunnel.ops.ending import stop_once
from yurttunnel.ops.log import forward_standard_logging
from yurttunnel.pki.directory import StateError
from yurttunnel.tunnel.direct.reactor import with_transports
from yurttunnel.tunnel.reactor import installed_reactor

__all__ = ["Options", "makeService"]


def makeService(options: Options) -> IService:
    """Build the hub from its command line; what is wrong ends the process with a sentence."""
    reactor = installed_reactor()
    make_steady(reactor)
    stop_once(reactor)
    settings = options.settings
    if options["diagnose"]:
        _diagnose(options)
    from yurttunnel.hub.process import build

    try:
        service = build(with_transports(reactor, "direct"), settings)
    except StateError as error:
        raise SystemExit(f"--root-dir: {error}") from None
    except BadFilter as error:
        raise SystemExit(f"--disabled-resource-filters: {error}") from None
    forward_standard_logging()
    return service


def _diagnose(options: Options) -> NoReturn:
    # What only this needs takes time and memory to import.
    from yurttunnel.hub.diagnosis import subject
    from yurttunnel.ops.diagnose.command import run_diagnosis

    run_diagnosis(subject(options.settings), options.bundle)
