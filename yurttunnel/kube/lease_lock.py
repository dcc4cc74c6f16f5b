"""A lease (``coordination.k8s.io/v1``, ``Lease``) from the view of one candidate.

The rules are those of ``k8s.io/client-go/tools/leaderelection``. They ensure that no two processes
hold the lease at once:

- Each write carries the ``resourceVersion`` on which the decision was based, so of two writes based
  on the same state one fails, even if it arrives late.
- The holder counts the duration from *before* it has sent its last successful write. Others count
  from *after* they have seen the lease change, which is later, and by their own clock; the times in
  the lease are only for people. They wait for its whole duration, while the holder gives it up
  sooner.
- If a lease is deleted while it is held, processes that knew of the holder treat this as a change
  at that moment; meanwhile the holder creates it again.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IReactorTime

from yurttunnel.kube.errors import AlreadyExists, Conflict, NotFound
from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.kube.resources import LEASES, Object
from yurttunnel.ops.clocks import micro_time, time_of_day

LEASE_SECONDS = 15
"""The duration of a lease that is not renewed."""

_RELEASE_ATTEMPTS = 3
_CONFLICTS = (AlreadyExists, Conflict, NotFound)


class LeaseLock:
    """The lease ``namespace/name`` for ``identity``, which has to be unique to the process.

    All methods fail as those of the client do; it is then unknown whether a write has succeeded.
    """

    def __init__(
        self, clock: IReactorTime, client: IKubeClient, namespace: str, name: str, identity: str
    ) -> None:
        self._clock = clock
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        # The lease as last seen, None if it did not exist; a write may have changed it since.
        self._lease: Object | None = None
        self._is_current = False
        # Its last spec, and when that was first seen, by this clock.
        self._spec: Object = {}
        self._observed_at: float | None = None
        # A write was sent that may have acquired the lease.
        self._may_be_ours = False
        self.renewed_at = 0.0
        """When the last successful write was sent, in seconds of the clock."""

    @property
    def holder(self) -> str:
        """The last known holder; empty if there was none."""
        return _holder(self._spec)

    def is_held_by_another(self) -> bool:
        """Return whether another process holds the lease, as far as known."""
        return self.holder not in ("", self._identity) and not self._has_expired()

    async def acquire(self) -> bool:
        """Acquire the lease unless another process holds it; return whether that succeeded."""
        await self._read()
        if self.is_held_by_another():
            return False
        try:
            await self._write()
        except _CONFLICTS as error:
            if isinstance(error, NotFound) and self._lease is None:
                # It is the namespace of the new lease that does not exist.
                raise
            return False
        return True

    async def renew(self) -> bool:
        """Renew the lease; return whether it was still held."""
        if self._is_current:
            try:
                await self._write()
            except _CONFLICTS:
                # The cause may be another edit of the lease, not another candidate.
                pass
            else:
                return True
        await self._read()
        if self._lease is not None and self.holder != self._identity:
            return False
        await self._write()
        return True

    async def release(self) -> None:
        """Release the lease if it is held, so that another process can acquire it at once."""
        for _ in range(_RELEASE_ATTEMPTS):
            if not self._may_be_ours:
                return
            await self._read()
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
            except _CONFLICTS:
                # Probably a late write of our own: read the lease again.
                continue
            self._observe(lease)
            self._may_be_ours = False

    async def _read(self) -> None:
        try:
            self._observe(await self._client.get(LEASES, self._name, self._namespace))
        except NotFound:
            if self._lease is not None and self.holder not in ("", self._identity):
                self._observed_at = self._clock.seconds()
            self._lease = None
        self._is_current = True

    async def _write(self) -> None:
        """Acquire or renew the lease, if it is unchanged since it was read."""
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
