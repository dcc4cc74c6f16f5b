"""The interfaces between the packages of the hub."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

from yurttunnel.hub.request.requests import HubCall
from yurttunnel.pki.contexts import ClientContexts


class IConnectivity(Interface):
    """Whether the cloud is reachable."""

    online: bool = Attribute("`bool`: at least one API server is healthy.")

    def on_change(callback: Callable[[bool], object]) -> None:
        """Call ``callback(online)`` after each change."""


class IIdentity(Interface):
    """The credentials for API servers, and the authorities that the hub trusts.

    The contexts are created once a certificate exists, even an expired one, and never replaced:
    they follow renewals themselves, and report them with ``on_rotated``. Without contexts, because
    it has just joined or its files are damaged, the hub serves from the cache.
    """

    node: ClientContexts | None = Attribute("`ClientContexts | None`: with the node's certificate.")
    anonymous: ClientContexts | None = Attribute(
        "`ClientContexts | None`: without a certificate, for requests with their own token."
    )

    def problem() -> str | None:
        """Return why there is no valid certificate, or ``None`` if there is one."""

    def note_acceptance(is_accepted: bool) -> None:
        """Record whether API servers accept the node's certificate."""


class IOffline(Interface):
    """Serves requests while the cloud is unreachable."""

    def respond(call: HubCall) -> None:
        """Serve a request from the cache, or respond with a ``Status`` that has the reason why not.

        This is also used for a request that was being forwarded when its server failed, and whose
        response has not begun.
        """

    def respond_if_cached(call: HubCall) -> Deferred[bool]:
        """Serve a get or a list if the requested data is cached; return whether it is.

        If it is not cached, nothing is sent: the API server may still respond, and a 404 would tell
        the client that the object does not exist. The Deferred never fails.
        """
