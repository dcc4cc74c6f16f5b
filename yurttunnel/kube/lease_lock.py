"""A lease as one of those sees it who want to hold it (``coordination.k8s.io/v1``, ``Lease``).

The rules are those of ``k8s.io/client-go/tools/leaderelection``. That no two hold it at once
follows from these:

- Each write carries the ``resourceVersion`` of what it was decided on, so of two that are decided
  on the same state one fails, also when it arrives late.
- The holder counts from *before* it has sent its last write that went well. Others count from
  *after* they have seen the lease change, which is later, by their own clock; the times in the
  lease are for people. They wait for its whole duration, the holder gives it up sooner.
- A lease that is deleted while somebody holds it counts as changed at that moment, for all who
  knew that it was held; its holder creates it again meanwhile.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IReactorTime

from yurttunnel.kube.errors import AlreadyExists, Conflict, NotFound
from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.kube.resources import LEASES, Object
from yurttunnel.ops.clocks import micro_time, time_of_day

LEASE_SECONDS = 15
"""How long a lease lasts that is not renewed."""

_RELEASE_ATTEMPTS = 3
_SOMEBODY_WAS_FASTER = (AlreadyExists, Conflict, NotFound)


class LeaseLock:
    """The lease ``namespace/name`` for ``identity``, which no other process may have.

    All methods fail as those of the client do; then nothing is known about whether they wrote.
    """

    def __init__(
        self,
        clock: IReactorTime,
        client: IKubeClient,
        namespace: str,
        name: str,
        identity: str,
    ) -> None:
        self._clock = clock
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        # As it was last seen, None when it was not there; a write may have changed it since.
        self._lease: Object | None = None
        self._is_current = False
        # What it last said, and since when it says so, by this clock.
        self._spec: Object = {}
        self._observed_at: float | None = None
        # A write was sent that may have made it ours.
        self._may_be_ours = False
        self.renewed_at = 0.0
        """When the last write that went well was sent, in seconds of the clock."""

    @property
    def holder(self) -> str:
        """Who held it when it was last looked at; empty when nobody did."""
        return _holder(self._spec)

    def is_held_by_another(self) -> bool:
        """Return whether somebody else holds it, as far as can be known here."""
        return self.holder not in ("", self._identity) and not self._has_expired()

    async def acquire(self) -> bool:
        """Take it if nobody else holds it; say whether that was so."""
        await self._look()
        if self.is_held_by_another():
            return False
        try:
            await self._write()
        except _SOMEBODY_WAS_FASTER:
            return False
        return True

    async def renew(self) -> bool:
        """Renew it; say whether it was still ours."""
        if self._is_current:
            try:
                await self._write()
            except _SOMEBODY_WAS_FASTER:
                # Not the other who wants it, necessarily: somebody may have edited it.
                pass
            else:
                return True
        await self._look()
        if self._lease is not None and self.holder != self._identity:
            return False
        await self._write()
        return True

    async def release(self) -> None:
        """Give it back, if it is ours, so that another can take it at once."""
        for _ in range(_RELEASE_ATTEMPTS):
            if not self._may_be_ours:
                return
            await self._look()
            if self._lease is None or self.holder != self._identity:
                self._may_be_ours = False
                return
            now = micro_time(time_of_day(self._clock))
            spec = {
                **self._spec,
                "holderIdentity": "",
                "leaseDurationSeconds": 1,
                "acquireTime": now,
                "renewTime": now,
            }
            try:
                lease = await self._client.update(LEASES, {**self._lease, "spec": spec})
            except _SOMEBODY_WAS_FASTER:
                # A write of ours that was late, most likely: look again.
                continue
            self._observe(lease)
            self._may_be_ours = False

    async def _look(self) -> None:
        try:
            self._observe(await self._client.get(LEASES, self._name, self._namespace))
        except NotFound:
            if self._lease is not None and self.holder not in ("", self._identity):
                self._observed_at = self._clock.seconds()
            self._lease = None
        self._is_current = True

    async def _write(self) -> None:
        """Make it ours from now on, if it still is what it was when it was looked at."""
        sent_at = self._clock.seconds()
        spec = self._own_spec()
        self._is_current = False
        self._may_be_ours = True
        if self._lease is None:
            metadata = {"name": self._name, "namespace": self._namespace}
            body = {"metadata": metadata, "spec": spec}
            lease = await self._client.create(LEASES, body, self._namespace)
        else:
            lease = await self._client.update(LEASES, {**self._lease, "spec": spec})
        self._observe(lease)
        self._is_current = True
        self.renewed_at = sent_at

    def _own_spec(self) -> Object:
        now = micro_time(time_of_day(self._clock))
        spec = {
            **self._spec,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now,
        }
        if self.holder != self._identity:
            transitions = self._spec.get("leaseTransitions")
            spec["leaseTransitions"] = transitions + 1 if isinstance(transitions, int) else 0
            spec["acquireTime"] = now
        return spec

    def _observe(self, lease: Object) -> None:
        spec = lease.get("spec")
        spec = spec if isinstance(spec, dict) else {}
        if spec != self._spec or self._observed_at is None:
            self._spec = spec
            self._observed_at = self._clock.seconds()
        self._lease = lease

    def _has_expired(self) -> bool:
        if self._observed_at is None:
            return True
        seconds = self._spec.get("leaseDurationSeconds")
        if not isinstance(seconds, int) or seconds <= 0:
            seconds = LEASE_SECONDS
        return self._clock.seconds() >= self._observed_at + seconds


def _holder(spec: Object) -> str:
    holder: Any = spec.get("holderIdentity")
    return str(holder) if holder else ""
