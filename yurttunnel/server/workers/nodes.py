"""Nodes that a worker has: to all others in this server they are as its own."""

from __future__ import annotations

import socket
from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from yurttunnel.server.frontends.calls import ITakesCallers
from yurttunnel.server.node_session import NodeSession
from yurttunnel.server.registry import INodeSession, SessionRegistry
from yurttunnel.server.siblings.feed import NodeEntry
from yurttunnel.server.siblings.remote import RemoteNodes, RemoteNodeSession
from yurttunnel.server.workers import messages
from yurttunnel.server.workers.channel import Channel
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.wire.codes import Code

ANOTHER_AGENT = "another agent of the node has connected"


class WorkerNodes(RemoteNodes):
    """The nodes that one worker has sessions with, as it tells them over ``tunnel``.

    They are direct ones in ``registry``, of which one process has those of a node. So the newest
    connection of a node wins in whichever process it is: the other is told over its ``channel``.
    ``gone`` is told of each node to which there is no way any more.
    """

    def __init__(
        self,
        clock: IReactorTime,
        registry: SessionRegistry,
        tunnel: TunnelSession,
        drains: Callable[[frozenset[INodeSession]], object],
        channel: Channel,
        gone: Callable[[str], object],
    ) -> None:
        super().__init__(clock, registry, tunnel, drains)
        self.channel = channel
        self._gone = gone
        self._by_name: dict[str, RemoteNodeSession] = {}
        registry.on_direct_changed.append(self._direct_changed)

    def has(self, node: str) -> bool:
        """Return whether the worker has a session with ``node``, as far as is known."""
        return node in self._by_name

    def clear(self) -> None:
        """Forget all nodes: the worker has ended."""
        super().clear()
        if self._direct_changed in self.registry.on_direct_changed:
            self.registry.on_direct_changed.remove(self._direct_changed)

    def make(self, entry: NodeEntry) -> RemoteNodeSession:
        """Make the way to a node."""
        return WorkerNodeSession(self, entry)

    def add(self, node: RemoteNodeSession) -> None:
        """Have the node served by the worker, and by nobody else."""
        self._by_name[node.node] = node
        for replaced in self.registry.add(node):
            if isinstance(replaced, NodeSession):
                replaced.tunnel.close(Code.REPLACED, ANOTHER_AGENT)

    def remove(self, node: RemoteNodeSession) -> None:
        """Have it served no longer by the worker."""
        if self._by_name.get(node.node) is node:
            del self._by_name[node.node]
        self.registry.remove(node)
        if self.registry.direct(node.node) is None:
            self._gone(node.node)

    def set_drains(self, node: RemoteNodeSession, drains: bool) -> None:
        """Note whether the worker opens nothing to a node, and tell siblings."""
        changes = drains != node.drains
        super().set_drains(node, drains)
        if changes and self.registry.direct(node.node) is node:
            self.registry.direct_changed(node.node)

    def _direct_changed(self, name: str) -> None:
        node = self._by_name.get(name)
        sessions = self.registry.direct_sessions(name)
        if node is not None and node in sessions[:-1]:
            del self._by_name[name]
            fields = {"node": name, "code": Code.REPLACED.value, "text": ANOTHER_AGENT}
            self.channel.send(messages.END, fields)


@implementer(ITakesCallers)
class WorkerNodeSession(RemoteNodeSession):
    """The way to one node by the worker that has the session with its agent."""

    def __init__(self, nodes: WorkerNodes, entry: NodeEntry) -> None:
        super().__init__(nodes, entry)
        self._channel = nodes.channel

    def take_caller(self, connection: socket.socket, received: bytes, flag: str) -> bool:
        """See :class:`ITakesCallers`."""
        fields = {"node": self.node, "flag": flag}
        return self._channel.pass_on(messages.CALLER, fields, received, connection)
