"""The seams between the rooms of the hub."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

from yurttunnel.hub.request.requests import HubCall
from yurttunnel.pki.contexts import ClientContexts


class IConnectivity(Interface):
    """Whether the cloud can be reached."""

    online: bool = Attribute("`bool`: at least one API server is healthy.")

    def on_change(callback: Callable[[bool], object]) -> None:
        """Have ``callback(online)`` called at each change."""


class IIdentity(Interface):
    """As whom the API servers are asked, and whom of them the hub believes.

    Contexts are made once there is a certificate, even one that has expired, and then stay: they
    follow renewals by themselves, and tell of them (``on_rotated``). A hub that has just joined, or
    whose files are damaged, answers from the cache without any.
    """

    node: ClientContexts | None = Attribute("`ClientContexts | None`: present the node.")
    anonymous: ClientContexts | None = Attribute(
        "`ClientContexts | None`: present nobody, for requests that have a token of their own."
    )

    def problem() -> str | None:
        """Return why there is no certificate that is good, if there is none."""

    def note_acceptance(is_accepted: bool) -> None:
        """Take it that API servers do, or do not, accept the certificate of the node."""


class IOffline(Interface):
    """Answers requests without the cloud."""

    def answer(call: HubCall) -> None:
        """Answer from the cache, or with a ``Status`` that says why not.

        Also for a request that was being forwarded when its server was lost, and whose answer has
        not begun.
        """

    def answer_if_kept(call: HubCall) -> Deferred[bool]:
        """Answer a get or a list, if what it asks for is kept; return whether that is so.

        Else nothing is sent: for a request that the API may answer still, and whose client must
        not be told meanwhile that there is no such object. It never fails.
        """
