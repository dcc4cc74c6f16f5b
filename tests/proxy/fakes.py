"""Fakes of the proxier's collaborators, in memory."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from zope.interface import implementer

from yurttunnel.proxy.interfaces import (
    IConntrack,
    IDesiredStateSource,
    IPortClaims,
    IProxySocket,
    IProxySockets,
    IRules,
    KernelStats,
    PartlyApplied,
    SocketStats,
)
from yurttunnel.proxy.socket_manager import IKernelMode
from yurttunnel.proxy.state.virtual_services import DesiredState, Problem, Protocol
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.interfaces import VERSIONS, Applied


@implementer(IDesiredStateSource)
class FakeSource:
    """Has no state until :meth:`set` is called."""

    def __init__(self):
        self.on_changed = []
        self.current = None

    def problem(self):
        """Return what is missing."""
        return None if self.current is not None else "nothing has been listed yet"

    def state(self):
        """Return the last state."""
        return self.current

    def set(self, *services, checks=(), problems=()):
        """Set another state."""
        self.current = DesiredState(
            {each.key: each for each in services},
            {each.port: each for each in checks},
            tuple(problems),
        )
        for changed in self.on_changed:
            changed()


@implementer(IProxySocket)
class FakeSocket:
    """Does not listen; a test sets ``active``, and ends the connections by :meth:`drained`."""

    def __init__(self, owner, port, service, picker):
        self.owner = owner
        self.port = port
        self.services = [service]
        self.picker = picker
        self.active = 0
        self.drains = []
        self._stopped = Deferred()

    def update(self, service):
        """Store the change."""
        self.services.append(service)

    def stop(self, drain):
        """Release the port."""
        self.drains.append(drain)
        self.owner.used.discard(self.port)
        if not self.active:
            self.drained()
        return self._stopped

    def drained(self):
        """End the connections."""
        self.active = 0
        self._stopped.callback(None)

    def stats(self):
        """Return the counts that a test has set."""
        return SocketStats(self.active, total=3, failed=1, received=10, sent=20)


@implementer(IProxySockets)
class FakeSockets:
    """Has some ports; ``opened`` are all sockets that were ever opened."""

    def __init__(self, ports=range(40000, 50000)):
        self.ports = ports
        self.used = set()
        self.opened = []

    def open(self, service, picker):
        """Use the first free port."""
        free = next((port for port in self.ports if port not in self.used), None)
        if free is None:
            raise OSError(98, "no remaining ports")
        self.used.add(free)
        socket = FakeSocket(self, free, service, picker)
        self.opened.append(socket)
        return socket


@implementer(IPortClaims)
class FakeClaims:
    """Claims every portal except those whose port is ``taken``."""

    def __init__(self):
        self.taken = set()
        self.wanted = None

    def claim(self, services):
        """Set which ports are taken."""
        self.wanted = {key: each.portals for key, each in services.items()}
        yield ""
        return {
            (key, portal): "another process listens there"
            for key, those in self.wanted.items()
            for portal in those
            if portal.port in self.taken
        }

    def release(self):
        """Release all ports."""
        self.wanted = None


@implementer(IRules)
class FakeRules:
    """Records what rules would be created for.

    ``applied`` has all of them. While ``failure`` is set, calls fail with it, and while ``holds``
    is true, they do not end until :meth:`release`. Families of the versions in ``refused`` get no
    rules. ``differences`` are those that the next call finds.
    """

    backend = "none"

    def __init__(self):
        self.applied = []
        self.removed = 0
        self.failure = None
        self.refused = set()
        self.holds = False
        self.differences = ()
        self.number = 0
        self._waiting = []

    async def apply(self, proxied):
        """Create the rules."""
        if self.holds:
            waiting = Deferred()
            self._waiting.append(waiting)
            await waiting
        if self.failure is not None:
            raise SteeringFailed(self.failure)
        made = {4, 6} - self.refused
        self.applied.append([each for each in proxied if each.service.key.version in made])
        if self.refused:
            raise PartlyApplied("a family is refused", made)
        found, self.differences = self.differences, ()
        return Applied(found)

    def release(self):
        """Let calls end."""
        self.holds = False
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(None)

    async def remove(self, versions=VERSIONS):
        """Remove the rules."""
        if self.failure is not None:
            raise SteeringFailed(self.failure)
        self.removed += 1
        return True

    def generation(self):
        """Return the number of changes by others."""
        return self.number

    @property
    def ports(self):
        """Return where each virtual service leads according to the last rules."""
        return {each.service.key: each.proxy_port for each in self.applied[-1]}


@implementer(IConntrack)
class FakeConntrack:
    """Records the flows that it deletes; while ``failure`` is set, fails with it."""

    def __init__(self):
        self.forgotten = []
        self.failure = None

    async def _delete_entries(self, version, stale):
        if self.failure is not None:
            raise SteeringFailed(self.failure)
        self.forgotten += [(version, each) for each in stale]
        return len(stale)

    def delete_entries(self, version, stale):
        """Record the flows."""
        return Deferred.fromCoroutine(self._delete_entries(version, stale))


class FakeChecks:
    """The health check ports."""

    def __init__(self):
        self.desired = {}
        self.found = []

    async def update(self, desired):
        """Serve the ``desired`` ports."""
        self.desired = desired

    def problems(self):
        """Return what a test has set."""
        return self.found

    async def stop(self):
        """Stop serving."""
        self.desired = {}


@implementer(IKernelMode)
class FakeKernel:
    """Carries all services except those with the PROXY protocol; each has a problem."""

    def supports(self, service):
        """Return whether the service needs no socket."""
        return not service.proxy_protocol

    def problems(self, service):
        """Return a problem."""
        return [Problem(str(service.key.name), "not as asked for")]

    def endpoints(self, service):
        """Return nothing."""
        return ()

    def stats(self, service):
        """Return some attempts."""
        return KernelStats(2, 7)

    def totals(self):
        """Return more attempts, including those of removed services."""
        return {Protocol.TCP: 9}
