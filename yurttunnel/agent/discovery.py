"""Discovers the servers' addresses in the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.application.service import Service
from twisted.logger import Logger
from zope.interface import implementer

from yurttunnel.agent.address_file import AddressFile
from yurttunnel.agent.routes import Location
from yurttunnel.agent.server_addresses import Follower, IServerAddresses
from yurttunnel.agent.service_addresses import (
    CLOUD_NODES,
    NoAddresses,
    ServiceFacts,
    locations,
    needs_nodes,
    needs_slices,
    node_facts,
    service_facts,
    slice_facts,
)
from yurttunnel.cluster.services import EXTERNAL_ADDRESS, SERVICE, slices_spec
from yurttunnel.http.authority import join_authority
from yurttunnel.kube.errors import NotAllowed
from yurttunnel.kube.informer import once_synced
from yurttunnel.kube.interfaces import IInformer, IInformers, InformerSpec
from yurttunnel.kube.resources import NODES, SERVICES


@implementer(IServerAddresses)
class DiscoveredAddresses(Service):
    """The addresses of the servers' service in ``namespace``, kept current.

    The objects it depends on are followed: the service, and depending on its type the cloud nodes
    or its EndpointSlices. If no address can be determined any more, the previous ones remain in
    use, including those that ``file`` has from an earlier run. A failed write of the file is
    retried at the next change in the API, and at the end.
    """

    _log = Logger()

    def __init__(self, informers: IInformers, namespace: str, file: AddressFile) -> None:
        self._informers = informers
        self._namespace = namespace
        self._file = file
        self._locations: Sequence[Location] = ()
        self._written: Sequence[Location] = ()
        self._problem: str | None = "the API has not been queried yet"
        # What is needed and not synced yet, by the name of its informer here.
        self._unsynced: str | None = None
        self._followers: list[Follower] = []
        self._informers_by_name: dict[str, IInformer] = {}
        self._stop_handlers: list[Callable[[], None]] = []

    def follow(self, changed: Follower) -> None:
        """Report the known addresses, and each change."""
        self._followers.append(changed)
        if self._locations:
            changed(self._locations)

    def problem(self) -> str | None:
        if self._unsynced is None:
            return self._problem
        error = self._informers_by_name[self._unsynced].error
        if isinstance(error, NotAllowed) and error.status == 403:
            return _forbidden_text(self._unsynced, error)
        return f"the API has not returned {self._unsynced} yet"

    # -- Service -------------------------------------------------------------------------------

    def startService(self) -> None:
        """Start with the last known addresses, and query the API."""
        super().startService()
        self._written = self._file.read()
        self._use(self._written)
        self._update()

    def stopService(self) -> None:
        super().stopService()
        self._write()
        for stop in self._stop_handlers:
            stop()
        self._stop_handlers.clear()
        self._informers_by_name.clear()
        self._unsynced = None

    # -- helpers -------------------------------------------------------------------------------

    def _update(self) -> None:
        """Determine the addresses from the current contents of the caches."""
        if not self.running:
            return
        try:
            found = self._locations_in_cluster()
        except NoAddresses as error:
            self._set_problem(str(error))
            return
        if found is None:
            return
        self._set_problem(None)
        if found != self._locations:
            self._use(found)
        self._write()

    def _write(self) -> None:
        """Write the addresses in use, unless that was done."""
        if self._locations != self._written and self._file.write(self._locations):
            self._written = self._locations

    def _locations_in_cluster(self) -> tuple[Location, ...] | None:
        """Return the addresses, ``None`` while the caches are incomplete."""
        where = f"{self._namespace}/{SERVICE}"
        services = self._informer(
            f"service {where}",
            InformerSpec(SERVICES, service_facts, namespace=self._namespace, name=SERVICE),
        )
        if services is None:
            return None
        service: ServiceFacts | None = services.get(SERVICE, self._namespace)
        if service is None:
            raise NoAddresses(
                f"there is no service {where}: create it as the manifests of the server have it,"
                " or start the agent with --namespace or --tunnelserver-addr"
            )
        if needs_nodes(service):
            spec = InformerSpec(NODES, node_facts, label_selector=CLOUD_NODES)
            nodes = self._informer(f"nodes with {CLOUD_NODES}", spec)
            return None if nodes is None else locations(service, nodes.values(), ())
        if needs_slices(service):
            slices = self._informer(
                f"the EndpointSlices of {where}", slices_spec(self._namespace, slice_facts)
            )
            return None if slices is None else locations(service, (), slices.values())
        return locations(service, (), ())

    def _informer(self, description: str, spec: InformerSpec[Any]) -> IInformer | None:
        """Return the informer for something, ``None`` until it has synced.

        The first call starts to follow it.
        """
        informer = self._informers_by_name.get(description)
        if informer is None:
            informer = self._informers_by_name[description] = self._informers.informer(spec)
            if not informer.synced:
                once_synced(informer, self._update)
            self._stop_handlers.append(informer.add_handler(self._changed))
        self._unsynced = None if informer.synced else description
        return informer if informer.synced else None

    def _changed(self, old: object, new: object) -> None:
        self._update()

    def _set_problem(self, problem: str | None) -> None:
        """Store the current problem, and log it if it is new."""
        if problem is not None and problem != self._problem:
            kept = "; the previous addresses stay in use" if self._locations else ""
            self._log.warn("no addresses of servers: {problem}{kept}", problem=problem, kept=kept)
        self._problem = problem

    def _use(self, found: Sequence[Location]) -> None:
        if not found:
            return
        self._locations = found
        self._log.info(
            "servers are at {addresses}",
            addresses=", ".join(join_authority(*location) for location in found),
        )
        for follower in self._followers:
            follower(found)


def _forbidden_text(description: str, error: NotAllowed) -> str:
    """Return what to do if the API does not allow the agent to read something."""
    return (
        f"the API does not allow this agent to read {description} ({error}). Kubelets' credentials"
        " allow services, but no EndpointSlices, and from Kubernetes 1.32 on no nodes but their"
        f" own: start the agent with --tunnelserver-addr, or give service {SERVICE} the annotation"
        f" {EXTERNAL_ADDRESS}, or run the agent with the service account of deploy/base"
    )
