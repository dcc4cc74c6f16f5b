"""Middlewares: wrappers of the proxy that see every request to a kubelet.

A middleware is found by name among the plugins of Twisted: an object that provides
:class:`IMiddlewareMaker` in a module of ``twisted.plugins`` (the Twisted documentation, "The
Twisted Plugin System"); docs/middlewares.md has an example.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.plugin import IPlugin, getPlugins
from zope.interface import Attribute, Interface

from yurttunnel.kube.interfaces import IInformer, IInformers, InformerSpec, whole
from yurttunnel.kube.resources import CONFIG_MAPS, ENDPOINT_SLICES, NODES, PODS, SERVICES
from yurttunnel.server.frontends.kubelet.request import Handler, InterceptedRequest

log = Logger()

KINDS = {each.kind: each for each in (NODES, PODS, SERVICES, CONFIG_MAPS, ENDPOINT_SLICES)}
"""The resources that middlewares can follow, by kind, such as ``Node``."""

_EVERYWHERE = frozenset({NODES, PODS})
"""Those that are followed in all namespaces, not only in the server's."""


class IMiddleware(Interface):
    """A wrapper of a request handler."""

    def wrap(handler: Handler) -> Handler:
        """Return a handler that does its part and calls ``handler`` for the rest.

        It may respond to a request itself, observe its end with ``request.exchange.on_end``, or set
        ``request.destination`` to override the fields of the request.
        """


class IMiddlewareMaker(IPlugin):
    """Creates a middleware when the server starts."""

    name: str = Attribute("`str`: its name for ``--middleware``.")
    informers: Sequence[str] = Attribute(
        "`Sequence[str]`: the kinds of Kubernetes objects that it has to know, of those in "
        "``KINDS``, as ``Node``. With any it is refused in the "
        "standalone mode, which has no Kubernetes API."
    )

    def make(clock: IReactorTime, informers: Mapping[str, IInformer]) -> IMiddleware:
        """Return the middleware; ``clock`` is the reactor, or a part of it.

        ``informers`` has an informer of whole objects for each kind in :attr:`informers`. None has
        synced yet.
        """


class BadMiddleware(Exception):
    """A requested middleware is not available; the text is a one-line reason."""


def installed_makers() -> list[IMiddlewareMaker]:
    """List the installed middlewares other than those of this package."""
    return list(getPlugins(IMiddlewareMaker))


class ClusterInformers(NamedTuple):
    """The source of informers for middlewares; ``namespace`` is the server's."""

    informers: IInformers
    namespace: str

    def of_kind(self, kind: str) -> IInformer:
        """Return an informer of whole objects; raises ``KeyError`` for an unknown kind."""
        resource = KINDS[kind]
        namespace = None if resource in _EVERYWHERE else self.namespace
        return self.informers.informer(InformerSpec(resource, whole, namespace))


def find_middlewares(
    clock: IReactorTime,
    names: Collection[str],
    makers: Iterable[IMiddlewareMaker] | None = None,
    cluster: ClusterInformers | None = None,
) -> list[IMiddleware]:
    """Create the middlewares called ``names``, in that order, by default by installed makers.

    ``cluster`` is ``None`` in the standalone mode. Raises :class:`BadMiddleware` for a name that is
    missing or not unique, and for a middleware that needs Kubernetes objects of a kind that the
    server does not have, or of any kind without ``cluster``.
    """
    by_name: dict[str, list[IMiddlewareMaker]] = {}
    # The plugins are searched for only if one is needed.
    if makers is None:
        makers = installed_makers() if names else ()
    for maker in makers:
        by_name.setdefault(maker.name, []).append(maker)
    # All are found before any is created.
    chosen = [_only(by_name, name) for name in names]
    informers = [_informers(maker, cluster) for maker in chosen]
    return [maker.make(clock, given) for maker, given in zip(chosen, informers, strict=True)]


def _only(by_name: Mapping[str, list[IMiddlewareMaker]], name: str) -> IMiddlewareMaker:
    candidates = by_name.get(name, [])
    if not candidates:
        known = ", ".join(sorted(by_name)) or "none"
        raise BadMiddleware(f"no plugin is called {name!r}; installed are: {known}")
    if len(candidates) > 1:
        raise BadMiddleware(f"{len(candidates)} plugins are called {name!r}: remove all but one")
    return candidates[0]


def _informers(maker: IMiddlewareMaker, cluster: ClusterInformers | None) -> dict[str, IInformer]:
    if not maker.informers:
        return {}
    if cluster is None:
        kinds = ", ".join(maker.informers)
        raise BadMiddleware(
            f"{maker.name!r} needs Kubernetes objects ({kinds}): it cannot be used with"
            " --standalone, which has no Kubernetes API"
        )
    unknown = [kind for kind in maker.informers if kind not in KINDS]
    if unknown:
        raise BadMiddleware(
            f"{maker.name!r} needs Kubernetes objects of the kind {unknown[0]!r}; the server has"
            f" {', '.join(KINDS)}"
        )
    return {kind: cluster.of_kind(kind) for kind in maker.informers}


def chain(middlewares: Sequence[IMiddleware], handler: Handler) -> Handler:
    """Wrap ``handler`` in ``middlewares``; the first is the outermost.

    An exception behind a middleware is turned into a response there: the handler may be called by a
    timer or a Deferred, where nothing else would respond.
    """
    for middleware in reversed(middlewares):
        handler = middleware.wrap(_responding(handler))
    return handler


def _responding(handler: Handler) -> Handler:
    def responding(request: InterceptedRequest) -> None:
        try:
            handler(request)
        except Exception:
            log.failure(
                "Defect: handling request {request_id} behind a middleware failed",
                request_id=request.request_id,
                node=request.node,
            )
            request.exchange.fail(500, "internal error: see the log of the server")

    return responding
