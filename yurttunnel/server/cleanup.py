"""``--cleanup-iptables``: removes what servers have left in this machine's firewall, and exits."""

from __future__ import annotations

import os
import sys

from twisted.application.service import Service
from twisted.internet.defer import Deferred

from yurttunnel.ops.ending import end_process
from yurttunnel.steering.firewall.tunnel import remove_everything
from yurttunnel.steering.interfaces import SteeringFailed
from yurttunnel.steering.netlink.address_sets import AddressSets
from yurttunnel.steering.netlink.worker import KernelWorker
from yurttunnel.steering.programs import Programs
from yurttunnel.tunnel.reactor import IReactor


class Cleanup(Service):
    """Does it when the process starts, and ends that; what cannot be removed is an error."""

    def __init__(self, reactor: IReactor) -> None:
        self._reactor = reactor
        self._removing: Deferred[None] | None = None

    def startService(self) -> None:
        """Begin, once the reactor runs."""
        super().startService()
        self._reactor.callWhenRunning(self._begin)

    def stopService(self) -> None:
        """Give up what is not done yet."""
        super().stopService()
        if self._removing is not None:
            self._removing.cancel()

    def _begin(self) -> None:
        self._removing = Deferred.fromCoroutine(self._remove())

    async def _remove(self) -> None:
        sets = AddressSets(KernelWorker(self._reactor).run, self._reactor)
        try:
            removed = await remove_everything(Programs(self._reactor), sets)
        except SteeringFailed as error:
            # The kernel's many refusals then have one reason.
            hint = "" if os.geteuid() == 0 else "run it as root: "
            end_process(self._reactor, f"--cleanup-iptables: {hint}{error}")
            return
        for sentence in removed or ["there was nothing to remove"]:
            # What goes to sys.stdout becomes part of twist's log.
            print(sentence, file=sys.__stdout__)
        self._reactor.stop()
