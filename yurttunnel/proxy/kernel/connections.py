"""The kernel's table of connections: which of them are answered, and forgetting those that are not.

A client's packets go where its connection is led in that table, whatever the rules are by then.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Collection, Iterator
from functools import partial

from pyroute2.netlink import NETLINK_NETFILTER
from twisted.internet.defer import Deferred

from yurttunnel.proxy.kernel.marks import RETRIED
from yurttunnel.proxy.kernel.targets import Attempt, Target
from yurttunnel.steering.netlink.conversation import CHANGE, DUMP, GET, Conversation, KernelRefused
from yurttunnel.steering.netlink.messages import NESTED, attribute, attributes, raw_request
from yurttunnel.steering.netlink.refusals import as_steering_failed
from yurttunnel.steering.netlink.worker import Run

# Of linux/netfilter/nfnetlink.h and nfnetlink_conntrack.h.
_SUBSYSTEM = 1
_GET, _DELETE = 1, 2
_TUPLE_ORIG, _TUPLE_REPLY, _STATUS, _MARK, _ZONE, _MARK_MASK, _STATUS_MASK = 1, 2, 3, 8, 18, 21, 26
_TUPLE_IP, _TUPLE_PROTO = 1, 2
_SOURCES, _DESTINATIONS = {4: 1, 6: 3}, {4: 2, 6: 4}
_PROTO_NUM, _PROTO_SRC_PORT, _PROTO_DST_PORT = 1, 2, 3
_SEEN_REPLY = 1 << 1
"""``IPS_SEEN_REPLY`` of linux/netfilter/nf_conntrack_common.h."""

_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
_HEADER_SIZE = 4

_NUMBER = struct.Struct("!I")

_OURS = (
    attribute(_MARK, _NUMBER.pack(RETRIED))
    + attribute(_MARK_MASK, _NUMBER.pack(RETRIED))
    + attribute(_STATUS, _NUMBER.pack(0))
    + attribute(_STATUS_MASK, _NUMBER.pack(_SEEN_REPLY))
)
"""Connections that may be led elsewhere, and are not answered, which old kernels do not look at.
(``CTA_FILTER`` would choose by the endpoint, but by one of IPv6 Linux 6.18 chooses all the others.)
"""

_Answers = tuple[bytes | None, bytes | None, bytes | None]
"""Where answers come from: address, protocol and port, as the kernel gives them."""

_LACKING = (
    "this kernel does not give its table of connections; load the module nf_conntrack_netlink, else"
    " endpoints that do not answer are not noticed in kernel mode"
)
_MEANINGS = {errno.EINVAL: _LACKING, errno.EOPNOTSUPP: _LACKING}


_ASKING = "cannot ask which connections are answered"


class Connections:
    """The table of the network namespace of the thread that asks; ``run`` waits for long answers.

    It is asked for single connections between :meth:`start` and :meth:`stop`.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._kernel: Conversation | None = None

    def start(self) -> None:
        """Open a socket. Raises :class:`SteeringFailed`."""
        with as_steering_failed(_ASKING, _MEANINGS):
            self._kernel = Conversation(NETLINK_NETFILTER)

    def stop(self) -> None:
        """Let it go."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    def is_answered(self, attempt: Attempt) -> bool | None:
        """Return whether the endpoint has answered; ``None`` where the connection is forgotten.

        The kernel answers from what it has in memory: this may be asked in the reactor's thread.
        Raises :class:`SteeringFailed`.
        """
        if self._kernel is None:
            return None
        asked = attribute(_TUPLE_REPLY | NESTED, _tuple(attempt))
        version = attempt.target.endpoint.address.version
        with as_steering_failed(_ASKING, _MEANINGS):
            try:
                found = self._kernel.get(_message(version, _GET, GET, asked))
            except KernelRefused as refusal:
                if refusal.code == errno.ENOENT:
                    return None
                raise
        return _is_answered(dict(attributes(found, _HEADER_SIZE)))

    def forget_unanswered(self, targets: Collection[Target]) -> Deferred[int]:
        """Delete those that the endpoints have not answered; return how many there were.

        Fails with :class:`SteeringFailed`.
        """
        return self._run(partial(_forget_unanswered, targets))


def check() -> None:
    """Raise :class:`SteeringFailed` where the kernel does not give the table."""
    with as_steering_failed(_ASKING, _MEANINGS), Conversation(NETLINK_NETFILTER) as kernel:
        for _ in kernel.dump(_message(4, _GET, DUMP, _OURS)):
            break


def _forget_unanswered(targets: Collection[Target]) -> int:
    with (
        as_steering_failed("cannot forget connections that are not answered", _MEANINGS),
        Conversation(NETLINK_NETFILTER) as kernel,
    ):
        forgotten = 0
        for version in sorted({each.endpoint.address.version for each in targets}):
            wanted = {_answers(each) for each in targets}
            # Read to the end first: a conversation is about one thing at a time.
            found = list(_unanswered(kernel.dump(_message(version, _GET, DUMP, _OURS)), wanted))
            codes = kernel.change_all(
                _message(version, _DELETE, CHANGE, identity) for identity in found
            )
            for code in codes:
                if code not in (0, errno.ENOENT):
                    raise KernelRefused(code)
            forgotten += codes.count(0)
        return forgotten


def _unanswered(bodies: Iterator[bytes], wanted: Collection[_Answers]) -> Iterator[bytes]:
    """Yield the attributes by which the kernel knows each connection.

    Old kernels do not look at what is asked for, and the connections are chosen here.
    """
    for body in bodies:
        known = dict(attributes(body, _HEADER_SIZE))
        original, reply = known.get(_TUPLE_ORIG), known.get(_TUPLE_REPLY)
        if original is None or reply is None or _is_answered(known):
            continue
        if _answers_of(reply) not in wanted:
            continue
        identity = attribute(_TUPLE_ORIG | NESTED, original)
        if _ZONE in known:
            identity += attribute(_ZONE, known[_ZONE])
        yield identity


def _answers(target: Target) -> _Answers:
    endpoint = target.endpoint
    return endpoint.address.packed, bytes([target.protocol.number]), _port(endpoint.port)


def _answers_of(reply: bytes) -> _Answers:
    """Return of the direction of answers where they come from."""
    parts = dict(attributes(reply))
    addresses = dict(attributes(parts.get(_TUPLE_IP, b"")))
    protocol = dict(attributes(parts.get(_TUPLE_PROTO, b"")))
    source = addresses.get(_SOURCES[4]) or addresses.get(_SOURCES[6])
    return source, protocol.get(_PROTO_NUM), protocol.get(_PROTO_SRC_PORT)


def _is_answered(known: dict[int, bytes]) -> bool:
    (status,) = _NUMBER.unpack(known[_STATUS])
    return bool(status & _SEEN_REPLY)


def _tuple(attempt: Attempt) -> bytes:
    """Return the addresses and ports of answers, which the endpoint sends."""
    endpoint = attempt.target.endpoint
    version = endpoint.address.version
    addresses = attribute(_SOURCES[version], endpoint.address.packed)
    addresses += attribute(_DESTINATIONS[version], attempt.source.packed)
    ports = attribute(_PROTO_NUM, bytes([attempt.target.protocol.number]))
    ports += attribute(_PROTO_SRC_PORT, _port(endpoint.port))
    ports += attribute(_PROTO_DST_PORT, _port(attempt.port))
    return attribute(_TUPLE_IP | NESTED, addresses) + attribute(_TUPLE_PROTO | NESTED, ports)


def _port(port: int) -> bytes:
    return struct.pack("!H", port)


def _message(version: int, command: int, flags: int, content: bytes) -> bytes:
    before = struct.pack("!BBH", _FAMILIES[version], 0, 0)
    return raw_request(before + content, _SUBSYSTEM << 8 | command, flags)
