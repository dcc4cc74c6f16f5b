"""The API of a cluster, at an address that all its components can reach."""

from __future__ import annotations

from functools import partial

from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from zope.interface import implementer

from benchmarks.ports import free_ports
from tests.apiserver.api import ClusterAPI
from yurtlab.api.store import Store
from yurttunnel.http.server import HTTPFactory
from yurttunnel.ops.clocks import utc_now
from yurttunnel.ops.listen import listen_tcp
from yurttunnel.ops.services import PortService
from yurttunnel.pki.caller_contexts import HTTP_PROTOCOL, OptionalCallerContexts
from yurttunnel.pki.contexts import RotatingContexts, client_context
from yurttunnel.quickstart.composition import HTTP_SETTINGS
from yurttunnel.quickstart.tunneled_nodes import TunneledNodes
from yurttunnel.tunnel import tls


class KubeletTLS(RotatingContexts):
    """The TLS of kube-apiserver as a client of kubelets, as configured by kubeadm: SNI is the name
    of the node, and the kubelet's certificate is not verified.
    """

    def creator(self, server_name):
        """Return the creator of TLS connections to a node."""
        return _Creator(self._context, server_name)

    def _build(self, credentials):
        return client_context(credentials, HTTP_PROTOCOL)


@implementer(IOpenSSLClientConnectionCreator)
class _Creator:
    def __init__(self, context, server_name):
        self._context = context
        self._server_name = server_name

    def clientConnectionForTLS(self, tlsProtocol):
        connection = SSL.Connection(self._context, None)
        connection.set_tlsext_host_name(self._server_name.encode())
        return connection


class EmbeddedAPI:
    """An API with ``credentials`` that authenticates to kubelets with ``caller``.

    It reaches nodes through the servers that ``servers()`` lists. ``store`` has its objects,
    ``requests`` the callers and their requests: name, attributes, and whether it was allowed. With
    ``join`` nodes join by bootstrap tokens. ``in_front(handler)`` returns the first handler.
    """

    def __init__(
        self,
        reactor,
        address: str,
        credentials,
        caller,
        servers,
        *,
        join: bool = False,
        in_front=lambda handler: handler,
    ) -> None:
        self._reactor = reactor
        self.requests: set = set()
        self.port = free_ports.take()
        self._toward_servers = KubeletTLS(caller)
        self._nodes = TunneledNodes(reactor, self._toward_servers, servers)
        self.store = Store(reactor)
        self.api = ClusterAPI(
            reactor,
            self.store,
            self._nodes.connections,
            on_request=lambda user, attributes, allowed: self.requests.add(
                (user.name, attributes, allowed)
            ),
            join=join,
        )
        self._factory = HTTPFactory(reactor, in_front(self.api), HTTP_SETTINGS)
        self._contexts = OptionalCallerContexts(credentials)
        secured = tls.server_side(reactor, self._contexts, self._factory)
        self._listener = PortService(
            partial(listen_tcp, reactor, "the API", address, self.port, secured)
        )

    async def start(self, is_ready) -> None:
        """Listen."""
        self._listener.startService()

    def rotate(self, credentials, caller) -> None:
        """Use new credentials; ``caller()`` creates those for kubelets."""
        now = utc_now(self._reactor)
        self._contexts.prepare(credentials, now)()
        self._toward_servers.prepare(caller(), now)()

    async def stop(self) -> None:
        """Stop everything."""
        await self._listener.stopService()
        self._factory.close()
        self.api.stop()
        self._nodes.close()
