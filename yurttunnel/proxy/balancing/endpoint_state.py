"""The state of one endpoint."""

from __future__ import annotations

from yurttunnel.proxy.interfaces import EndpointStats
from yurttunnel.proxy.state.virtual_services import Endpoint


class EndpointState:
    """An endpoint of one virtual service.

    ``consecutive_failures`` is the number of failed dials since the last success, and ``ejections``
    the number of ejections since then. ``ejected_until`` is ``None`` if it is not ejected.
    ``removed`` is set when the service no longer has it.
    """

    __slots__ = (
        "active",
        "consecutive_failures",
        "ejected_until",
        "ejections",
        "endpoint",
        "failures",
        "last_failure",
        "probed",
        "removed",
    )

    def __init__(self, endpoint: Endpoint, active: int) -> None:
        self.endpoint = endpoint
        self.active = active
        self.failures = 0
        self.consecutive_failures = 0
        self.last_failure = ""
        self.ejections = 0
        self.ejected_until: float | None = None
        self.probed = False
        self.removed = False

    def stats(self) -> EndpointStats:
        """Return the state for the status page."""
        return EndpointStats(
            self.endpoint, self.active, self.failures, self.last_failure, self.ejected_until
        )
