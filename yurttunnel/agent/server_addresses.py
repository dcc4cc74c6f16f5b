"""Where the servers are: what an agent asks for, and what a command line answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zope.interface import Interface, implementer

from yurttunnel.agent.routes import Location

Follower = Callable[[Sequence[Location]], object]


class IServerAddresses(Interface):
    """Knows where the servers can be dialed."""

    def follow(changed: Follower) -> None:
        """Have ``changed(locations)`` called at once when they are known, and for each change."""

    def problem() -> str | None:
        """Return what is missing to know them, and what to do; ``None`` when nothing is."""


@implementer(IServerAddresses)
class FixedAddresses:
    """What ``--tunnelserver-addr`` says."""

    def __init__(self, locations: Sequence[Location]) -> None:
        self._locations = locations

    def follow(self, changed: Follower) -> None:
        changed(self._locations)

    def problem(self) -> str | None:
        return None
