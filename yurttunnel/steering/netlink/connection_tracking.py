"""Keeping redirected connections redirected when the rules are removed.

The kernel stores the destination of a redirected connection, but applies it only while it tracks
connections, and while there is a chain of the type ``nat``. Both start with the first rule that
needs them, and end with the last one. If there are only rules of this program, then a flush by
another program, or the removal of the rules when this one drains, would break every connection that
they have redirected (``nf_ct_netns_put`` of net/netfilter/nf_conntrack_proto.c,
``nf_nat_unregister_fn`` of nf_nat_core.c). So this process has its own table with one of each,
which exists until the last data has been delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.netlink import expressions
from yurttunnel.steering.netlink.owned_table import OUTPUT, BaseChain, OwnedTable
from yurttunnel.steering.netlink.sock_diag import wait_until_delivered
from yurttunnel.steering.netlink.worker import Run

TABLE = "yurttunnel-"
"""The prefix of the table's name."""

_PRIORITY = 100
"""A priority after the rules of iptables (``NF_IP_PRI_NAT_DST``)."""


class ConnectionTracking(OwnedTable):
    """Has the kernel track and translate connections, from its start to its stop.

    ``ports`` returns the local ports to which connections have been redirected. An error is logged
    once, with the ``flag`` that has requested rules.
    """

    _log = Logger()

    def __init__(self, run: Run, flag: str, ports: Callable[[], Collection[int]]) -> None:
        self._flag = flag
        self._ports = ports
        # It reads the state, and does nothing with it.
        rule = expressions.ct(expressions.CT_STATE)
        keep = BaseChain("keep", "nat", OUTPUT, _PRIORITY, (rule,))
        super().__init__(run, TABLE, [keep], "cannot keep connections tracked", self._log_failure)

    def stopService(self) -> Deferred[None]:
        """Remove the table once clients have received all data, or after a timeout."""
        if self._table is None:
            return super().stopService()
        delivered = self._run(partial(wait_until_delivered, frozenset(self._ports())))
        return delivered.addErrback(self._ignore_failure).addCallback(
            lambda _: self._remove_table()
        )

    def _remove_table(self) -> Deferred[None]:
        return super().stopService()

    def _ignore_failure(self, failure: Failure) -> None:
        """Stop waiting if the kernel is too busy to answer."""
        failure.trap(SteeringFailed)

    def _log_failure(self, error: SteeringFailed) -> None:
        self._log.warn(
            "{flag}: {error}. Unless other rules use connection tracking, as those of kube-proxy"
            " do, connections end when the rules of this program are removed",
            flag=self._flag,
            error=str(error),
        )
