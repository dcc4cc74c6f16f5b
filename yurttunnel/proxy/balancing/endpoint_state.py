"""What is known of one endpoint."""

from __future__ import annotations

from yurttunnel.proxy.interfaces import EndpointStats
from yurttunnel.proxy.state.virtual_services import Endpoint


class EndpointState:
    """An endpoint of one virtual service.

    ``in_a_row`` are the dials that have failed since one succeeded, and ``ejections`` how often it
    has been left out since then. ``ejected_until`` is ``None`` where it is not. ``removed`` is set
    when the service has it no longer.
    """

    __slots__ = (
        "active",
        "ejected_until",
        "ejections",
        "endpoint",
        "failures",
        "in_a_row",
        "last_failure",
        "probed",
        "removed",
    )

    def __init__(self, endpoint: Endpoint, active: int) -> None:
        self.endpoint = endpoint
        self.active = active
        self.failures = 0
        self.in_a_row = 0
        self.last_failure = ""
        self.ejections = 0
        self.ejected_until: float | None = None
        self.probed = False
        self.removed = False

    def stats(self) -> EndpointStats:
        """Return it for the page."""
        return EndpointStats(
            self.endpoint, self.active, self.failures, self.last_failure, self.ejected_until
        )
