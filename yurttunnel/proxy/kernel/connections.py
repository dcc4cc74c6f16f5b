"""Access to the conntrack table: which attempts are answered, and deleting the entries of others.

A client's packets follow the entry of its connection, even after the rules have changed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import islice

from twisted.internet.defer import Deferred

from yurttunnel.proxy.kernel.marks import RETRIED
from yurttunnel.proxy.kernel.targets import Attempt, Target
from yurttunnel.proxy.state.virtual_services import Address
from yurttunnel.steering.netlink.conntrack_table import (
    ConntrackEntry,
    ConntrackTable,
    ConntrackTuple,
)
from yurttunnel.steering.netlink.errors import as_steering_failed
from yurttunnel.steering.netlink.netlink_socket import NETLINK_NETFILTER, NetlinkSocket
from yurttunnel.steering.netlink.worker import Run

_LOOKUP_FAILED = "cannot look up which connections are answered"
_DELETION_FAILED = "cannot delete the conntrack entries of unanswered connections"

_NO_CONNTRACK = (
    "this kernel does not provide its conntrack table; load the module nf_conntrack_netlink,"
    " otherwise kernel mode does not detect endpoints that do not respond"
)
MEANINGS = {errno.EINVAL: _NO_CONNTRACK, errno.EOPNOTSUPP: _NO_CONNTRACK}
"""The meanings of the kernel's errors when the table is read."""

MAX_PORTALS = 32
"""The maximum number of portals to try in a search if the client's address is replaced."""

Portals = Callable[[Target], Iterable[tuple[Address, int]]]
"""Yields the addresses and ports by which clients reach an endpoint."""


class Connections:
    """The conntrack table of the thread's network namespace; ``run`` runs blocking calls.

    Single connections can be looked up between :meth:`start` and :meth:`stop`.
    """

    def __init__(self, run: Run, portals: Portals) -> None:
        self._run = run
        self._portals = portals
        self._kernel: NetlinkSocket | None = None

    def start(self) -> None:
        """Open a netlink socket. Raises :class:`SteeringFailed`."""
        with as_steering_failed(_LOOKUP_FAILED, MEANINGS):
            self._kernel = NetlinkSocket(NETLINK_NETFILTER)

    def stop(self) -> None:
        """Close the socket."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    def is_answered(self, attempt: Attempt) -> bool | None:
        """Return whether the endpoint has answered; ``None`` if the entry no longer exists.

        This may be called in the reactor's thread. Raises :class:`SteeringFailed`.
        """
        if self._kernel is None:
            return None
        with as_steering_failed(_LOOKUP_FAILED, MEANINGS):
            found = self._find(self._kernel, attempt)
        return None if found is None else found.is_answered

    def delete_entry(self, attempt: Attempt) -> None:
        """Delete the entry of an attempt, if it exists.

        This may be called in the reactor's thread. Raises :class:`SteeringFailed`.
        """
        if self._kernel is None:
            return
        with as_steering_failed(_DELETION_FAILED, MEANINGS):
            found = self._find(self._kernel, attempt)
            if found is not None:
                version = attempt.target.endpoint.address.version
                ConntrackTable(self._kernel).delete(version, [found])

    def _find(self, kernel: NetlinkSocket, attempt: Attempt) -> ConntrackEntry | None:
        """Return the entry of an attempt. Search it by the reply direction, or, if replies go to
        another address than the client's, by the original direction.
        """
        (protocol, endpoint), source, port = attempt
        table, version = ConntrackTable(kernel), endpoint.address.version
        of_endpoint = endpoint.address.packed, endpoint.port
        of_client = source.packed, port
        found = table.find_by_reply(
            version, ConntrackTuple(protocol.number, *of_endpoint, *of_client)
        )
        # The client may also connect to the endpoint directly, from the same port.
        if found is not None and found.is_translated:
            return found
        for address, number in islice(self._portals(attempt.target), MAX_PORTALS):
            to = ConntrackTuple(protocol.number, *of_client, address.packed, number)
            found = table.find_by_original(version, to)
            if found is not None and (found.reply_source, found.reply_port) == of_endpoint:
                return found
        return None

    def delete_unanswered(self, targets: Collection[Target], mark: int) -> Deferred[int]:
        """Delete the entries that the endpoints have not answered; return how many there were.

        Only entries whose mark has all bits of ``mark`` are considered. Fails with
        :class:`SteeringFailed`.
        """
        return self._run(partial(_delete_unanswered, targets, mark))


def check() -> None:
    """Raise :class:`SteeringFailed` if the kernel does not provide the table."""
    with as_steering_failed(_LOOKUP_FAILED, MEANINGS), NetlinkSocket(NETLINK_NETFILTER) as kernel:
        for _ in ConntrackTable(kernel).unanswered(4, RETRIED):
            break


def _delete_unanswered(targets: Collection[Target], mark: int) -> int:
    with as_steering_failed(_DELETION_FAILED, MEANINGS), NetlinkSocket(NETLINK_NETFILTER) as kernel:
        table = ConntrackTable(kernel)
        wanted = {
            (protocol.number, endpoint.address.packed, endpoint.port)
            for protocol, endpoint in targets
        }
        deleted = 0
        for version in sorted({each.endpoint.address.version for each in targets}):
            # Read to the end first: a netlink socket handles one request at a time.
            found = [
                entry
                for entry in table.unanswered(version, mark)
                if (entry.protocol, entry.reply_source, entry.reply_port) in wanted
            ]
            deleted += table.delete(version, found)
        return deleted
