"""The settings of a server that can change while it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from yurttunnel.ops import tunnel_flags
from yurttunnel.ops.configuration.reloading import ChangeRejected
from yurttunnel.server import flag_table
from yurttunnel.server.options import Settings

LIVE_FLAGS = (
    flag_table.FORWARD,
    flag_table.ALLOW_CONNECT,
    tunnel_flags.DRAIN_TIMEOUT,
    flag_table.RESPONSE_TIMEOUT,
    flag_table.RESUME_WINDOW,
    flag_table.RETURN_GRACE,
)

ApplySettings = Callable[[Settings], Awaitable[None] | None]


class LiveSettings:
    """The current settings, ``current``; later ones can change :data:`LIVE_FLAGS` only."""

    def __init__(self, settings: Settings) -> None:
        self.current = settings
        self._parts: list[ApplySettings] = []

    def follow(self, apply: ApplySettings) -> None:
        """Have ``apply(settings)`` called for each change.

        Callbacks that may reject a change, by :class:`ChangeRejected`, must be registered first.
        """
        self._parts.append(apply)

    async def apply(self, settings: Settings) -> None:
        """Change to ``settings``, or raise :class:`ChangeRejected` and change nothing.

        Permissions cannot all be removed this way: the file may have been truncated.
        """
        if self.current.connect_permissions and not settings.connect_permissions:
            raise ChangeRejected(
                "--allow-connect: without one everybody who can connect can reach every node,"
                " which needs a restart: keep at least one"
            )
        for apply in self._parts:
            applied = apply(settings)
            if applied is not None:
                await applied
        self.current = settings
