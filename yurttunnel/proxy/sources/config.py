"""Services, and their endpoints, as all sources together say."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic

from yurttunnel.proxy.sources.broadcaster import Broadcaster
from yurttunnel.proxy.sources.mux import Channel, Mux
from yurttunnel.proxy.sources.store import Kept, Store, Update
from yurttunnel.proxy.state.endpoint_slices import EndpointSlice
from yurttunnel.proxy.state.services import Service


class Config(Generic[Kept]):
    """A mux, whose updates are merged in a store; ``broadcaster`` tells of those that change it."""

    def __init__(self, broadcaster: Broadcaster) -> None:
        self._broadcaster = broadcaster
        self._store = Store[Kept]()
        self._mux = Mux[Kept](self._merge)

    def channel(self, source: str) -> Channel[Kept]:
        """Return the channel of ``source``, which is waited for from now on."""
        self._store.add(source)
        return self._mux.channel(source)

    def objects(self) -> Collection[Kept]:
        """Return all objects."""
        return self._store.merged()

    def incomplete(self) -> list[str]:
        """Return the sources that have not said all once."""
        return self._store.incomplete()

    def _merge(self, source: str, update: Update[Kept]) -> None:
        if self._store.merge(source, update):
            self._broadcaster.notify()


ServiceConfig = Config[Service]
EndpointsConfig = Config[EndpointSlice]
