"""What ``--diagnose`` looks at of a hub."""

from __future__ import annotations

from yurttunnel.hub.identity.identity import PKI_DIRECTORY
from yurttunnel.hub.settings import Settings
from yurttunnel.ops.diagnose.command import Subject


def subject(settings: Settings) -> Subject:
    """Name the hub's port, its files, and the secret that its command line may hold."""
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
