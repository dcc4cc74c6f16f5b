"""Connections that have been led here stay led, whatever becomes of the rules that did it.

The kernel remembers where it leads a connection, but applies that only while it tracks
connections, and while there is a chain of the type ``nat``. It begins with the first rule that
needs either, and ends with the last one: where the rules of this program are the only ones, whoever
flushes them, or the program itself when it drains, would break every connection that they have led
(``nf_ct_netns_put`` of net/netfilter/nf_conntrack_proto.c, ``nf_nat_unregister_fn`` of
nf_nat_core.c). So this process has a table of its own with one of each, which stays until the
kernel has delivered what was sent last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.netlink import expressions
from yurttunnel.steering.netlink.own_table import OUTPUT, OwnChain, OwnTable
from yurttunnel.steering.netlink.sockets import wait_until_delivered
from yurttunnel.steering.netlink.worker import Run

TABLE = "yurttunnel-"
"""What the name of the table begins with."""

_LAST = 100
"""A priority behind the rules of iptables (``NF_IP_PRI_NAT_DST``)."""


class Tracking(OwnTable):
    """Has the kernel track connections, and translate them, from its start to its stop.

    ``ports`` returns where connections have been led to on this machine. What is refused is told in
    the log, once, with the ``flag`` that has asked for rules.
    """

    _log = Logger()

    def __init__(self, run: Run, flag: str, ports: Callable[[], Collection[int]]) -> None:
        self._flag = flag
        self._ports = ports
        # It reads the state, and does nothing with it.
        rule = expressions.ct(expressions.CT_STATE)
        keep = OwnChain("keep", "nat", OUTPUT, _LAST, (rule,))
        super().__init__(run, TABLE, [keep], "cannot keep connections tracked", self._tell)

    def stopService(self) -> Deferred[None]:
        """Let it go, once clients have the end of what they were sent, or take too long."""
        if self._table is None:
            return super().stopService()
        delivered = self._run(partial(wait_until_delivered, frozenset(self._ports())))
        return delivered.addErrback(self._unknown).addCallback(lambda _: self._let_go())

    def _let_go(self) -> Deferred[None]:
        return super().stopService()

    def _unknown(self, failure: Failure) -> None:
        """Wait no longer where the kernel is too busy to tell."""
        failure.trap(SteeringFailed)

    def _tell(self, error: SteeringFailed) -> None:
        self._log.warn(
            "{flag}: {error}. Unless other rules use connection tracking, as those of kube-proxy"
            " do, connections end when the rules of this program are removed",
            flag=self._flag,
            error=str(error),
        )
