"""The permissions of the quickstart's node in its API."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from yurtlab.api.access import IAuthorizer, Request, User
from yurtlab.api.errors import ApiError
from yurtlab.api.resources import RESOURCES, Routes
from yurttunnel.quickstart.trust import NodeAndMasters

NODE = User("system:node:edge-1", ("openyurt:yurthub", "system:nodes", "system:authenticated"))
POD = "/api/v1/namespaces/default/pods/web"


class NodeTests(SynchronousTestCase):
    """Node ``edge-1``, whose identity every program of the machine can use through the hub."""

    def setUp(self):
        """Make the authorizer."""
        self.authorizer = NodeAndMasters("edge-1")
        self.routes = Routes(RESOURCES)

    def may(self, method, path, user=NODE):
        """Return whether the authorizer allows a request."""
        try:
            self.authorizer.check(user, Request(method, path, {}, self.routes.find(path)))
        except ApiError as error:
            self.assertEqual(403, error.status)
            return False
        return True

    def test_is_an_authorizer(self):
        """The authorizer implements the API's interface."""
        verifyObject(IAuthorizer, self.authorizer)

    def test_what_nodes_do(self):
        """The node may read, and write its Node, its lease, events and the status of pods."""
        for method, path in (
            ("GET", "/api/v1/pods"),
            ("GET", "/version"),
            ("GET", POD),
            ("POST", "/api/v1/nodes"),
            ("PUT", "/api/v1/nodes/edge-1/status"),
            ("PUT", f"{POD}/status"),
            ("DELETE", POD),
            ("POST", "/api/v1/namespaces/default/events"),
            ("PATCH", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/edge-1"),
        ):
            self.assertTrue(self.may(method, path), f"{method} {path}")

    def test_what_would_run_programs(self):
        """The node may not create or change pods, run commands in them, or delete more than one."""
        for method, path in (
            ("POST", "/api/v1/namespaces/default/pods"),
            ("PUT", POD),
            ("PATCH", POD),
            ("GET", f"{POD}/exec"),
            ("POST", f"{POD}/exec"),
            ("GET", f"{POD}/attach"),
            ("GET", f"{POD}/portforward"),
            ("GET", f"{POD}/log"),
            ("GET", "/api/v1/nodes/edge-1/proxy/pods"),
            ("DELETE", "/api/v1/namespaces/default/pods"),
            ("DELETE", "/api/v1/nodes/edge-1"),
            ("POST", "/api/v1/namespaces/default/secrets"),
        ):
            self.assertFalse(self.may(method, path), f"{method} {path}")

    def test_others(self):
        """Another node may do nothing, and the user of the kubeconfig everything."""
        other = User("system:node:edge-2", NODE.groups)
        self.assertFalse(self.may("GET", "/api/v1/pods", other))
        user = User("quickstart-admin", ("system:masters",))
        self.assertTrue(self.may("POST", f"{POD}/exec", user))
