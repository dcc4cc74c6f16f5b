"""kubectl on the node, through the hub and directly, and pods that run."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SkipTest

from tests.apiserver.bootstrap_roles import rule
from tests.e2e.cluster.nodes import MirroredNode
from tests.e2e.hub.cloud import NODE, Cloud
from tests.e2e.hub.programs import Hub
from tests.e2e.hub.support import HubTestCase
from tests.e2e.kubectl import Kubectl, find_kubectls
from tests.e2e.programs import free_ports
from yurttunnel.http.server import HTTPFactory
from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.loading import load_configuration
from yurttunnel.ops.listen import listen_tcp
from yurttunnel.ops.services import CloseOnStop, PortService, StoppedInReverse
from yurttunnel.pki.caller_contexts import CallerContexts
from yurttunnel.pki.names import CALLER_NAME, KUBELET_CLIENT_NAME
from yurttunnel.quickstart.composition import HTTP_SETTINGS
from yurttunnel.tunnel import tls


class Home:
    """The environment of a kubectl: a directory, and a kubeconfig."""

    def __init__(self, directory: str, kubeconfig: Path) -> None:
        self.directory = directory
        self.kubeconfig = str(kubeconfig)


class KubectlTestCase(HubTestCase):
    """A test case with an administrator's kubectl, and one that uses the hub."""

    def direct(self, cloud: Cloud) -> Kubectl:
        """Return a kubectl that uses the API directly."""
        config = cloud.identities.client_kubeconfig("admin", cloud.url, "admin", "system:masters")
        return self._kubectl("direct", config)

    def through(self, cloud: Cloud, hub: Hub) -> Kubectl:
        """Return a kubectl that uses the hub with the node's identity, here without limits."""
        cloud.grant("system:nodes", rule("*", "*", "*"), {"verbs": ["*"], "nonResourceURLs": ["*"]})
        path = Path(self.directory, "hub.kubeconfig")
        config = cloud.identities.kubeconfig(path, f"http://127.0.0.1:{hub.port}")
        return self._kubectl("through", config)

    def _kubectl(self, name: str, config: Path) -> Kubectl:
        versions = find_kubectls()
        if not versions:
            raise SkipTest("kubectl is not installed")
        directory = os.path.join(self.directory, name)
        os.makedirs(directory, exist_ok=True)
        return Kubectl(reactor, list(versions.values())[-1], Home(directory, config))

    def start_node(self, cloud: Cloud) -> None:
        """Start to run pods on the node."""
        config = cloud.identities.client_kubeconfig(
            "kubelet", cloud.url, f"system:node:{NODE}", "system:nodes"
        )
        client = KubeClient(reactor, load_configuration(config))
        serving = cloud.identities.serving("kubelet-serving", [NODE], "127.0.0.1")
        contexts = CallerContexts(serving, {CALLER_NAME, KUBELET_CLIENT_NAME})
        cloud.kubelet_port = free_ports.take()
        directory = Path(self.directory, "node")
        node = MirroredNode(reactor, client, NODE, "127.0.0.1", cloud.kubelet_port, directory)
        factory = HTTPFactory(reactor, node.handler, HTTP_SETTINGS)
        secured = tls.server_side(reactor, contexts, factory)
        listen = partial(listen_tcp, reactor, "kubelet", "127.0.0.1", cloud.kubelet_port, secured)
        together = StoppedInReverse(
            CloseOnStop(client.close),
            PortService(listen),
            CloseOnStop(partial(_close, factory)),
            node,
        )
        together.startService()
        self.addCleanup(lambda: together.stopService() or Deferred.fromCoroutine(_nothing()))


def _close(factory: HTTPFactory) -> None:
    factory.close()


async def _nothing() -> None:
    """Exit at once."""
