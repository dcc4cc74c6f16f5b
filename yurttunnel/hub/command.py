"""``twist yurthub``: the node's proxy to the Kubernetes API."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from twisted.application.service import IService

from yurttunnel.hub.filters.chain import BadFilter
from yurttunnel.hub.options import Options
from yurttunnel.hub.settings import Settings
from yurttunnel.ops.command_line import exit_on_broken_pipe
from yurttunnel.ops.configuration.reloading import configuration_reloader
from yurttunnel.ops.diagnose.subject import Subject
from yurttunnel.ops.log import forward_standard_logging
from yurttunnel.ops.startup import initialize
from yurttunnel.pki.directory import StateError
from yurttunnel.tunnel.direct.reactor import with_transports

__all__ = ["Options", "makeService"]


def makeService(options: Options) -> IService:
    """Build the hub from its command line; exit with a one-line message on errors."""
    reactor, settings = initialize(options, subject)
    if options.dump is not None:
        _dump(settings.cache_dir, options.dump)
    from yurttunnel.hub.process import build

    try:
        prepared = with_transports(reactor, "direct")
        service = build(prepared, settings, configuration_reloader(reactor, options))
    except StateError as error:
        raise SystemExit(f"--root-dir: {error}") from None
    except BadFilter as error:
        raise SystemExit(f"--disabled-resource-filters: {error}") from None
    forward_standard_logging()
    return service


def subject(settings: Settings) -> Subject:
    """Return the hub's port, files and secrets for ``--diagnose``."""
    # Imported here, because it takes time and memory, and only ``--diagnose`` needs it.
    from yurttunnel.hub.identity.identity import PKI_DIRECTORY

    bootstrap = settings.bootstrap
    return Subject(
        program="yurthub",
        meta_host=settings.listeners.meta_host,
        meta_port=settings.listeners.meta_port,
        directories=(settings.root_dir / PKI_DIRECTORY, settings.cache_dir),
        files=() if bootstrap.file is None else (bootstrap.file,),
        secret_flags=("--join-token",),
        secrets=() if bootstrap.token is None else (bootstrap.token.bearer,),
    )


def _dump(cache: Path, target: Path) -> NoReturn:
    from yurttunnel.hub.cache.dump import as_text, write_files
    from yurttunnel.hub.cache.interfaces import CacheFailed
    from yurttunnel.hub.process import DATABASE

    # twist has replaced sys.stdout with an object that writes to the log.
    screen = sys.__stdout__ or sys.stdout
    path = cache / DATABASE
    if not os.path.exists(path):
        raise SystemExit(
            f"--disk-cache-path: the cache {path} does not exist, or is not readable: give the"
            " flags of the node's hub, and run this as its user"
        )
    try:
        if str(target) == "-":
            lines = as_text(path)
        else:
            lines = iter((f"{write_files(path, target)} objects are in {target.absolute()}",))
        with exit_on_broken_pipe(screen):
            for line in lines:
                print(line, file=screen)
    except CacheFailed as error:
        raise SystemExit(f"--disk-cache-path: {error}") from None
    except OSError as error:
        raise SystemExit(f"--dump-cache: {error.filename or target}: {error.strerror}") from None
    raise SystemExit(0)
