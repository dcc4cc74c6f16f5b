"""The servers' addresses: the interface, and its implementation for the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zope.interface import Interface, implementer

from yurttunnel.agent.routes import Location

Follower = Callable[[Sequence[Location]], object]


class IServerAddresses(Interface):
    """Knows the servers' addresses."""

    def follow(changed: Follower) -> None:
        """Have ``changed(locations)`` called at once if they are known, and for each change."""

    def problem() -> str | None:
        """Return why they are unknown, and what to do; ``None`` if they are known."""


@implementer(IServerAddresses)
class FixedAddresses:
    """The addresses in ``--tunnelserver-addr``."""

    def __init__(self, locations: Sequence[Location]) -> None:
        self._locations = locations

    def follow(self, changed: Follower) -> None:
        changed(self._locations)

    def problem(self) -> str | None:
        return None
