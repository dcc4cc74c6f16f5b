"""Callers whose connection goes from the first process to the one that has their node."""

from __future__ import annotations

from yurttunnel.server.connect import ConnectFactory, ConnectProtocol


class PassedCaller(ConnectProtocol):
    """A caller whose request the first process has read, and found ``node`` for.

    It is read once more from its first byte on, so that all that follows is as in one process. It
    has come by the entry that ``flag`` asks for.
    """

    def __init__(self, factory: ConnectFactory, node: str, flag: str) -> None:
        super().__init__(factory)
        self._found = node
        self._flag = flag

    @property
    def flag(self) -> str:
        """The flag of the entry by which the caller has come to the first process."""
        return self._flag

    def dial(self, node: str, host: str, port: int) -> None:
        """Open a stream by the node that was found: the first process knows of more nodes."""
        super().dial(self._found, host, port)
