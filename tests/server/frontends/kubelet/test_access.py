"""The permissions that requests to kubelets need."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.server.frontends.kubelet.fakes import head
from yurttunnel.server.frontends.kubelet.access import Access, accesses


class AccessTests(SynchronousTestCase):
    """The rules of kubelets."""

    def needs(self, target, *subresources, is_kubelet=True, verb="get"):
        """Assert the subresources of which each allows a request."""
        desired = accesses(head(target=target), "edge-1", is_kubelet)
        self.assertEqual([Access(verb, each, "edge-1") for each in subresources], desired, target)

    def test_verbs(self):
        """The method maps to a verb of the API; other methods need every verb."""
        for method, verb in (
            ("GET", "get"),
            ("POST", "create"),
            ("PUT", "update"),
            ("PATCH", "patch"),
            ("DELETE", "delete"),
            ("HEAD", ""),
            ("OPTIONS", ""),
        ):
            self.assertEqual(
                [Access(verb, "proxy", "edge-1")],
                accesses(head(method, "/containerLogs/a/b/c"), "edge-1", True),
            )

    def test_running(self):
        """Requests that run something need ``create``, since a WebSocket begins with GET."""
        for target in (
            "/exec/default/web/web?command=sh",
            "/exec",
            "/%65xec/a/b/c",
            "/attach/a/b/c",
            "/portForward/a/b",
            "/run/a/b/c",
            "/cri/exec/token",
        ):
            for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
                for is_kubelet in (True, False):
                    self.assertEqual(
                        [Access("create", "proxy", "edge-1")],
                        accesses(head(method, target), "edge-1", is_kubelet),
                        (method, target),
                    )
            self.assertEqual("", accesses(head("HEAD", target), "edge-1", True)[0].verb)

    def test_checkpoint(self):
        """A checkpoint has its own subresource, and the verb of its method."""
        for method, verb in (("POST", "create"), ("GET", "get")):
            self.assertEqual(
                [Access(verb, "checkpoint", "edge-1")],
                accesses(head(method, "/checkpoint/a/b/c"), "edge-1", True),
            )

    def test_paths(self):
        """Some paths have their own subresource, and some of these a second one."""
        self.needs("/stats/summary", "stats")
        self.needs("/metrics", "metrics")
        self.needs("/metrics/cadvisor?x=/exec", "metrics")
        self.needs("/logs/", "log")
        self.needs("/logs/a%20b", "log")
        self.needs("/checkpoint/a/b/c", "checkpoint")
        self.needs("/pods", "pods", "proxy")
        self.needs("/runningpods/", "pods", "proxy")
        self.needs("/healthz", "healthz", "proxy")
        self.needs("/healthz/ping", "healthz", "proxy")
        self.needs("/configz", "configz", "proxy")
        self.needs("/statusz", "statusz", "proxy")

    def test_everything_else(self):
        """All other paths need nodes/proxy."""
        for target in ("/", "*", "/containerLogs/a/b/c", "/execs/a/b/c", "/Exec/a", "/metricsx"):
            self.needs(target, "proxy")

    def test_hidden_paths(self):
        """An ambiguous path needs the permission to run something."""
        for target in (
            "/metrics/../exec/a/b/c",
            "/metrics/%2e%2e/exec/a/b/c",
            "/metrics/..%2fexec/a/b/c",
            "/metrics/./x",
            "//metrics",
            "/metrics//x",
            "/metrics%2fx",
            "//exec/a/b/c",
            "http://edge-1:10250/exec/a/b/c",
        ):
            self.needs(target, "proxy", verb="create")

    def test_other_ports(self):
        """A destination that is not a kubelet has its own paths, which need nodes/proxy."""
        self.needs("/metrics", "proxy", is_kubelet=False)

    def test_text(self):
        """The text has the terms of RBAC."""
        self.assertEqual(
            "get nodes/metrics of node edge-1", str(Access("get", "metrics", "edge-1"))
        )
        self.assertEqual("use nodes/proxy of every node", str(Access("", "proxy", "")))
