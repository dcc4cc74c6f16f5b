"""The service of ``twist yurttunnel-quickstart``."""

from __future__ import annotations

from importlib.util import find_spec

from twisted.application.service import IService

from yurttunnel.ops.shutdown import ignore_repeated_stops, stop_on_early_signals
from yurttunnel.ops.startup import raise_open_files_limit
from yurttunnel.pki.directory import StateError
from yurttunnel.quickstart.options import Options
from yurttunnel.tunnel.direct.reactor import with_transports
from yurttunnel.tunnel.reactor import installed_reactor

__all__ = ["Options", "makeService"]


def makeService(options: Options) -> IService:
    """Build everything from the command line; an error ends the process with a message."""
    reactor = installed_reactor()
    try:
        # It needs packages that servers and agents do not, and the check another one.
        from yurttunnel.quickstart.composition import build

        if options.settings.check and find_spec("kubernetes") is None:
            raise ModuleNotFoundError("No module named 'kubernetes'")
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"yurttunnel-quickstart needs more packages ({error}):"
            " pip install 'yurttunnel[quickstart]', or '.[quickstart]' in a checkout"
        ) from None

    ignore_repeated_stops(reactor)
    raise_open_files_limit()
    # From now on there is a temporary directory to remove.
    stop_on_early_signals(reactor)
    try:
        return build(with_transports(reactor, "direct"), options.settings)
    except StateError as error:
        raise SystemExit(f"--state-dir: {error}") from None
