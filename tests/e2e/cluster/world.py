"""A cluster on one machine: an API, nodes that run real processes, servers and agents.

All have separate addresses in the network of the test. The API is the embedded one of the
quickstart, or a real kube-apiserver if ``KUBEBUILDER_ASSETS`` has one. The only controllers are the
signer of certificates and those for the status of workloads, so the objects of others
(EndpointSlices, pods of a DaemonSet) are created here, by the same API calls.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from twisted.application.service import MultiService, Service
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.internet.utils import getProcessOutputAndValue
from twisted.protocols.policies import WrappingFactory

from benchmarks.ports import free_ports
from tests.apiserver.controllers import WorkloadControllers
from tests.apiserver.signer import CertificateSigner
from tests.deploy.rendering import read_base
from tests.e2e.cluster.balancer import Balancer
from tests.e2e.cluster.embedded_api import EmbeddedAPI
from tests.e2e.cluster.identities import Identities
from tests.e2e.cluster.machine_program import MachineProgram
from tests.e2e.cluster.network import ClusterNetwork
from tests.e2e.cluster.nodes import EDGE_LABEL, MirroredNode
from tests.e2e.cluster.real_api import RealAPI, assets
from tests.e2e.kubectl import Kubectl, find_kubectls
from tests.e2e.programs import ROOT, Program, ProgramFailed
from yurttunnel.http.server import HTTPFactory
from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.errors import ApiError, ApiUnreachable, NotFound
from yurttunnel.kube.informer import Informers
from yurttunnel.kube.loading import load_configuration
from yurttunnel.kube.resources import CONFIG_MAPS, ENDPOINT_SLICES, PODS, SERVICES
from yurttunnel.ops.clocks import utc_now
from yurttunnel.ops.listen import listen_tcp
from yurttunnel.ops.services import CloseOnStop, PortService, StoppedInReverse
from yurttunnel.pki.caller_contexts import CallerContexts
from yurttunnel.pki.cluster_issuer import ClusterIssuer
from yurttunnel.pki.contexts import RotatingContexts
from yurttunnel.pki.credentials import Credentials, new_key
from yurttunnel.pki.issuer import CertificateTemplate, Chain
from yurttunnel.pki.names import CALLER_NAME, KUBELET_CLIENT_NAME
from yurttunnel.quickstart.composition import HTTP_SETTINGS
from yurttunnel.tunnel import tls

NAMESPACE = "kube-system"
API = "10.77.0.1"
SERVERS = ("10.77.0.21", "10.77.0.22", "10.77.0.23")
NODES = {"edge-1": "10.77.0.31", "edge-2": "10.77.0.32", "edge-3": "10.77.0.33"}
SPARE_ADDRESS = "10.77.0.41"
"""An address without a listener, for single tests."""

AGENT_PORT = 10262
SECURE_PORT = 10263
INSECURE_PORT = 10264
SERVER_META_PORT = 10265
AGENT_META_PORT = 10266
KUBELET_PORT = 10250

SERVICE = "x-tunnel-server-svc"
EXTERNAL = "x-tunnel-server-external-addr"

ENTRYPOINT = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "twisted")
"""The replacement for the image's entry point."""

TOKEN_SECONDS = 3600
STOP_SECONDS = 25.0
"""The timeout of a program's end in seconds: more than its --drain-timeout."""
SIGNED_SECONDS = 86400.0


NO_STEERING = {"--enable-iptables": "false", "--enable-dns-controller": "false"}
"""Flags of servers that a test does not override."""


class Network(Protocol):
    """The machines of a cluster, including the test's own."""

    def at(self, address: str) -> AbstractContextManager[None]:
        """Run a block on the machine with this address; it must not contain ``await``."""


def loopback(address: str) -> str:
    """Return the loopback address of the server at ``address``; all may be on one machine."""
    return f"127.0.0.{address.rpartition('.')[2]}"


class World:
    """The cluster without the tunnel, and methods that create the parts of the tunnel.

    ``directory`` is the test's. :meth:`stop` ends everything. The signer's certificates are valid
    for ``signed_seconds``. ``network`` has all addresses, and ``nodes`` has those of the nodes by
    their names. Without ``network``, one machine has all addresses.
    """

    def __init__(
        self,
        reactor,
        directory: str,
        signed_seconds: float = SIGNED_SECONDS,
        network: Network | None = None,
        nodes: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._reactor = reactor
        self._signed_seconds = signed_seconds
        self.directory = Path(directory)
        self._addresses = nodes or {name: [address] for name, address in NODES.items()}
        self._own_network: ClusterNetwork | None = None
        if network is None:
            network = ClusterNetwork([API, *SERVERS, *NODES.values(), SPARE_ADDRESS])
            self._own_network = network
        self.network: Any = network
        self.identities = Identities(reactor, self.directory / "pki")
        self.servers = [SERVERS[0], SERVERS[1]]
        """The addresses of the servers as the API knows them, in its order of preference."""
        self.nodes: dict[str, MirroredNode] = {}
        self._renewals: list[Callable[[], object]] = []
        self._parts: list[MultiService] = []
        self._programs: list[MachineProgram] = []

    async def start(self) -> None:
        """Start the API, apply ``deploy/base``, and sign approved certificate requests."""
        identities, reactor = self.identities, self._reactor
        api_credentials = self._api_credentials()
        caller = identities.caller()
        identities.account_keys()
        if assets() is not None:
            socket_path = str(self.directory / "egress.sock")
            balancer = Balancer(reactor, lambda: [self.socket_path(each) for each in self.servers])
            self._run(PortService(partial(reactor.listenUNIX, socket_path, balancer)))
            self.api = RealAPI(reactor, self.directory, identities.directory, API, socket_path)
        else:
            self.api = EmbeddedAPI(
                reactor,
                API,
                api_credentials,
                caller,
                lambda: [(s, SECURE_PORT) for s in self.servers],
            )
        self.url = f"https://{API}:{self.api.port}"
        self._renewals.append(lambda: self.api.rotate(self._api_credentials(), identities.caller))
        admin = self._client_kubeconfig("admin", "admin", "system:masters")
        self.kubeconfig = str(admin)
        self.client = self._client_of(admin)
        await self.api.start(self._is_ready)
        [self.kubectl_version, path], *_ = find_kubectls().items()
        self.kubectl = Kubectl(reactor, path, self)
        # Not with -k, because the kustomize of kubectl 1.20 cannot read it.
        manifests = {"apiVersion": "v1", "kind": "List", "items": read_base()}
        await self.kubectl.output("apply", "-f", "-", stdin=json.dumps(manifests).encode())
        self._controllers = self._client_of(admin)
        informers = Informers(reactor, self._controllers)
        self.signer = CertificateSigner(
            reactor,
            self._controllers,
            informers,
            identities.signing_authority(),
            self._signed_seconds,
        )
        workloads = WorkloadControllers(self._reactor, self._controllers, informers, ENTRYPOINT)
        self._run(informers, self.signer, workloads)

    async def stop(self) -> None:
        """Stop everything, the newest first; raise an error if a program does not exit normally."""
        problems = [await self._end(program) for program in reversed(self._programs)]
        for part in reversed(self._parts):
            await part.stopService()
        await self._controllers.close()
        await self.client.close()
        await self.api.stop()
        if self._own_network is not None:
            self._own_network.close()
        if any(problems):
            raise ProgramFailed("\n".join(filter(None, problems)))

    # -- Parts of the cluster ------------------------------------------------------------------

    async def add_nodes(self, *names: str, edge: bool = True) -> None:
        """Start nodes, each with a pod for its agent, and wait until they are registered."""
        for name in names:
            address, *others = self._addresses[name]
            await self.add_node(name, address, others=others, edge=edge)

    async def add_node(
        self,
        name: str,
        address: str,
        port: int = KUBELET_PORT,
        others: Sequence[str] = (),
        edge: bool = True,
    ) -> None:
        """Start a node with its kubelet, which listens on its first address and on ``others``."""
        addresses = (address, *others)
        config = self._client_kubeconfig(name, f"system:node:{name}", "system:nodes")
        client = self._client_of(config)
        serving = partial(self.identities.serving, f"kubelet-{name}", [name], *addresses)
        contexts = CallerContexts(serving(), {CALLER_NAME, KUBELET_CLIENT_NAME})
        self._renewals.append(partial(self._rotate, contexts, serving))
        node = MirroredNode(
            self._reactor, client, name, address, port, self.directory / name, others, edge
        )
        factory = HTTPFactory(self._reactor, node.handler, HTTP_SETTINGS)
        secured = PeerRecorder(tls.server_side(self._reactor, contexts, factory), node.peers)
        self._run(
            CloseOnStop(client.close),
            *(PortService(partial(self._listen, each, port, secured)) for each in addresses),
            CloseOnStop(partial(_close, factory)),
            node,
        )
        self.nodes[name] = node
        await self.add_agent_pod(name, name)

    async def issue(self, name: str, template: CertificateTemplate) -> Chain:
        """Request a certificate for a node from the cluster, and wait for it."""
        client = self._client_of(self.identities.directory / f"{name}.kubeconfig")
        issuer = ClusterIssuer(self._reactor, client, template.signer, template.usages)
        try:
            return await issuer.issue(template.request(new_key()), lambda _: None)
        finally:
            await client.close()

    async def relabel(self, name: str, edge: str) -> None:
        """Change the label of a node."""
        await self.kubectl.output("label", "--overwrite", "node", name, f"{EDGE_LABEL}={edge}")

    async def add_agent_pod(self, name: str, node: str | None) -> None:
        """Create the pod of an agent; with ``None`` as its node it is never scheduled."""
        spec = {
            "serviceAccountName": "yurt-tunnel-agent",
            "containers": [{"name": "agent", "image": "none", "command": ["sleep", "1d"]}],
        }
        spec |= {"nodeSelector": {"is": "nowhere"}} if node is None else {"nodeName": node}
        pod = {"metadata": {"name": f"yurt-tunnel-agent-{name}"}, "spec": spec}
        await self.client.create(PODS, pod, NAMESPACE)

    async def publish_servers(self) -> None:
        """Publish the servers (``self.servers``) to the cluster and to the agents."""
        await self.write_slice(*self.servers)
        await self.announce(*(f"{address}:{AGENT_PORT}" for address in self.servers))

    async def write_slice(self, *servers: str) -> None:
        """Publish the servers to the cluster, but not to the agents."""
        slice_name = f"{SERVICE}-1"
        body = {
            "metadata": {
                "name": slice_name,
                "namespace": NAMESPACE,
                "labels": {"kubernetes.io/service-name": SERVICE},
            },
            "addressType": "IPv4",
            "endpoints": [
                {
                    "addresses": [address],
                    "conditions": {"ready": True, "serving": True, "terminating": False},
                }
                for address in servers
            ],
            "ports": [{"name": "tcp", "port": AGENT_PORT, "protocol": "TCP"}],
        }
        try:
            await self.client.update(ENDPOINT_SLICES, body)
        except NotFound:
            await self.client.create(ENDPOINT_SLICES, body, NAMESPACE)

    async def publish(self, **spec) -> None:
        """Change the Service of the servers, without its annotation."""
        service = await self.client.get(SERVICES, SERVICE, NAMESPACE)
        service["metadata"].pop("annotations", None)
        if spec.get("type") == "ClusterIP":
            for port in service["spec"]["ports"]:
                port.pop("nodePort", None)
        service["spec"].update(spec)
        await self.client.update(SERVICES, service)

    async def announce(self, *addresses: str) -> None:
        """Write the servers' address for agents into the Service."""
        service = await self.client.get(SERVICES, SERVICE, NAMESPACE)
        annotations = service["metadata"].setdefault("annotations", {})
        annotations[EXTERNAL] = ",".join(addresses)
        await self.client.update(SERVICES, service)

    async def set_proxy_ports(self, data: dict[str, str]) -> None:
        """Replace the data of the server's ConfigMap."""
        config = await self.client.get(CONFIG_MAPS, "yurt-tunnel-server-cfg", NAMESPACE)
        await self.client.update(CONFIG_MAPS, {**config, "data": data})

    async def reconnect(self) -> None:
        """Use new connections for this test's further requests to the API."""
        former, self.client = self.client, self._client_of(Path(self.kubeconfig))
        await former.close()

    def renew(self) -> None:
        """Issue new certificates to all but the tunnel, and publish the current authorities."""
        for renewal in self._renewals:
            renewal()

    # -- The tunnel ----------------------------------------------------------------------------

    def socket_path(self, address: str) -> str:
        """The path of a server's socket for HTTP CONNECT."""
        return str(self.directory / f"connect-{address}.sock")

    async def server(self, address: str, *extra: str) -> MachineProgram:
        """Create a server; the test starts it."""
        config = await self._account("yurt-tunnel-server", address)
        arguments = [
            "yurttunnel-server",
            *("--kube-config", str(config)),
            *("--cert-dir", str(self.directory / f"pki-{address}")),
            *("--bind-address", address),
            *("--insecure-bind-address", address),
            *("--connect-endpoint", f"unix:{self.socket_path(address)}"),
            *("--drain-timeout", "10"),
            *(f"{flag}={value}" for flag, value in NO_STEERING.items() if not _has(extra, flag)),
            *extra,
        ]
        log_path = str(self.directory / f"server-{address}.log")
        return self._program(arguments, log_path, SERVER_META_PORT, address)

    async def agent(self, node: str, *extra: str, pod_of: str | None = None) -> MachineProgram:
        """Create the agent of a node; the test starts it.

        Its token is that of the node's pod, or that of ``pod_of``: then it is an impostor, with
        its own directory for certificates.
        """
        whose = pod_of or node
        pod = await self.client.get(PODS, f"yurt-tunnel-agent-{whose}", NAMESPACE)
        bound = {
            "kind": "Pod",
            "apiVersion": "v1",
            "name": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"],
        }
        name = node if pod_of is None else f"{pod_of}-as-{node}"
        config = await self._account("yurt-tunnel-agent", name, bound)
        address = self._addresses[node][0]
        meta_port = AGENT_META_PORT if pod_of is None else free_ports.take()
        arguments = [
            "yurttunnel-agent",
            *("--kube-config", str(config)),
            *("--cert-dir", str(self.directory / f"pki-{name}")),
            *("--node-name", node, "--node-ip", address),
            *("--meta-host", address, "--meta-port", str(meta_port)),
            *("--drain-timeout", "10"),
            *extra,
        ]
        log_path = str(self.directory / f"agent-{name}.log")
        return self._program(arguments, log_path, meta_port, address)

    async def restarted(self, program: Program) -> MachineProgram:
        """Create a program with the command line of one that has ended; the test starts it."""
        return self._program(
            program.arguments, program.log_path, program.meta_port, program.meta_host
        )

    async def request_kubelet(
        self, server: str, host: str, path: str, token: str | None = None, admin: bool = False
    ) -> tuple[int, str]:
        """Request a page of a kubelet from a server; return status and body.

        The caller has a bearer token or is the administrator, and selects the node by ``Host``; or
        it is kube-apiserver, which selects it by SNI.
        """
        if token is None and not admin:
            name = host.rpartition(":")[0]
            way = ("--insecure", "--connect-to", f"::{server}:{SECURE_PORT}")
            url = f"https://{name}:{SECURE_PORT}{path}"
            return await self._curl(url, "kubernetes.default", *self.caller_flags(), *way)
        proof = self._certificate_flags("admin")
        if token is not None:
            proof = ("--header", f"Authorization: Bearer {token}")
        proof += ("--cacert", str(self.identities.ca_path))
        return await self._curl(f"https://{server}:{SECURE_PORT}{path}", host, *proof)

    def caller_flags(self) -> tuple[str, ...]:
        """Return the flags with which curl presents the certificate of kube-apiserver."""
        return self._certificate_flags("kubelet-client")

    def _certificate_flags(self, name: str) -> tuple[str, ...]:
        directory = self.identities.directory
        return ("--cert", str(directory / f"{name}.crt"), "--key", str(directory / f"{name}.key"))

    async def request_node(self, server: str, host: str, path: str) -> tuple[int, str]:
        """Request a page of another port of a node from a server, as on the server's machine.

        The server must listen on :func:`loopback` of its address.
        """
        return await self._curl(f"http://{loopback(server)}:{INSECURE_PORT}{path}", host)

    async def _curl(self, url: str, host: str, *extra: str) -> tuple[int, str]:
        out, error, status = await getProcessOutputAndValue(
            "/usr/bin/curl",
            (
                *("--silent", "--show-error", "--max-time", "20", "--header", f"Host: {host}"),
                *("--write-out", "\n%{http_code}", *extra, url),
            ),
            reactor=self._reactor,
        )
        if status != 0:
            raise ProgramFailed(f"curl: {error.decode()}")
        body, _, code = out.decode().rpartition("\n")
        return int(code), body

    # -- helpers -------------------------------------------------------------------------------

    def _program(self, arguments, log_path, meta_port, meta_host) -> MachineProgram:
        place = partial(self.network.at, meta_host)
        program = MachineProgram(self._reactor, arguments, log_path, meta_port, meta_host, place)
        self._programs.append(program)
        return program

    async def _end(self, program: Program) -> str | None:
        if program.running:
            try:
                status = await program.stop(STOP_SECONDS)
            except ProgramFailed as error:
                return str(error)
            if status not in (0, -signal.SIGTERM):
                return str(program.failed(f"SIGTERM gave exit status {status}"))
        forbidden_log_lines = program.forbidden_log_lines()
        return (
            str(program.failed("complains:\n" + "\n".join(forbidden_log_lines)))
            if forbidden_log_lines
            else None
        )

    async def _account(self, account: str, whose: str, bound: dict | None = None) -> Path:
        """Write the kubeconfig of a service account, with a token like those of pods."""
        token = await self.token(account, bound)
        token_path = self.directory / f"{whose}.token"
        token_path.write_text(token)
        token_path.chmod(0o600)
        path = self.directory / f"{whose}.kubeconfig"
        return self.identities.kubeconfig(path, self.url, tokenFile=str(token_path))

    async def token(self, account: str, bound: dict | None = None) -> str:
        """Request a token of a service account from the API (TokenRequest)."""
        spec: dict = {"audiences": [], "expirationSeconds": TOKEN_SECONDS}
        if bound is not None:
            spec["boundObjectRef"] = bound
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        answer = await self.kubectl.output(
            "create", "--raw", path, "-f", "-", stdin=json.dumps(request).encode()
        )
        return json.loads(answer)["status"]["token"]

    def _api_credentials(self) -> Credentials:
        return self.identities.serving("api", ["kubernetes", "localhost"], API)

    def _client_kubeconfig(self, name: str, user: str, group: str) -> Path:
        self._renewals.append(partial(self.identities.client, name, user, group))
        return self.identities.client_kubeconfig(name, self.url, user, group)

    def _rotate(self, contexts: RotatingContexts, make: Callable[[], Credentials]) -> None:
        contexts.prepare(make(), utc_now(self._reactor))()

    def _client_of(self, kubeconfig: Path) -> KubeClient:
        return KubeClient(self._reactor, load_configuration(kubeconfig))

    async def _is_ready(self) -> bool:
        try:
            await self.client.list(SERVICES, "default")
        except (ApiError, ApiUnreachable):
            return False
        return True

    def _run(self, *parts: Service) -> None:
        together = StoppedInReverse(*parts)
        together.startService()
        self._parts.append(together)

    def _listen(self, address: str, port: int, factory: IProtocolFactory) -> IListeningPort:
        with self.network.at(address):
            return listen_tcp(self._reactor, "kubelet", address, port, factory)


class PeerRecorder(WrappingFactory):
    """Records the addresses of clients in ``peers``."""

    def __init__(self, factory, peers: list[str]) -> None:
        super().__init__(factory)
        self._peers = peers

    def buildProtocol(self, addr):
        """Record the client's address."""
        self._peers.append(addr.host)
        return self.wrappedFactory.buildProtocol(addr)


def _has(arguments: Sequence[str], flag: str) -> bool:
    """Return whether arguments contain a flag, in either of its forms."""
    return any(each.partition("=")[0] == flag for each in arguments)


def _close(factory: HTTPFactory) -> None:
    factory.close()
