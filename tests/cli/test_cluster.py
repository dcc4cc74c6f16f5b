"""Servers of a cluster, queried by a fake kubectl."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.cli.client import CommandFailed, NotFound
from yurttunnel.cli.cluster import Kubectl, servers
from yurttunnel.cli.status import StatusOptions, status

KUBECTL = """#!{python} -I
import http.server, json, sys
from pathlib import Path

here = Path(__file__).parent
with open(here / "calls", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
answers = json.loads((here / "answers").read_text())
if "--raw" in sys.argv:
    answer = answers["raw"].get(sys.argv[-1])
    if answer is None:
        sys.exit("Error from server (ServiceUnavailable):\\n connection refused")
    print(answer)
    sys.exit()

class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        status, body = answers["forwarded"].get(self.path, [404, "no such page"])
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *arguments):
        pass

for line in answers["warnings"]:
    print(line, file=sys.stderr, flush=True)
if answers["forwarded"] is None:
    sys.exit("error: unable to forward port")
server = http.server.HTTPServer(("127.0.0.1", 0), Pages)
print(f"Forwarding from 127.0.0.1:{{server.server_port}} -> 10265", flush=True)
server.serve_forever()
"""

PODS = "/api/v1/namespaces/ns/pods?labelSelector=k8s-app%3Dyurt-tunnel-server"


def pod(name: str, phase: str = "Running") -> dict:
    """Return a pod."""
    return {"metadata": {"name": name}, "status": {"phase": phase}}


class ClusterTests(SynchronousTestCase):
    """How servers are found and queried."""

    def setUp(self) -> None:
        """Put a fake kubectl into the PATH."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        path = self.directory / "kubectl"
        path.write_text(KUBECTL.format(python=sys.executable))
        path.chmod(0o755)
        self.patch(os, "environ", {**os.environ, "PATH": str(self.directory)})
        self.raw: dict[str, str] = {PODS: json.dumps({"items": [pod("s-2"), pod("s-1")]})}

    def answers(self, forwarded: dict | None = None, warnings: tuple[str, ...] = ()) -> None:
        """Set the answers of kubectl, and the warnings that it prints when it forwards a port."""
        answers = {"raw": self.raw, "forwarded": forwarded, "warnings": warnings}
        (self.directory / "answers").write_text(json.dumps(answers))

    def calls(self) -> list[list[str]]:
        """Return the arguments of each call of kubectl."""
        return [json.loads(line) for line in (self.directory / "calls").read_text().splitlines()]

    def test_found(self) -> None:
        """Running servers are found, and kubectl gets the flags for it."""
        self.raw[PODS] = json.dumps({"items": [pod("s-2"), pod("old", "Failed"), pod("s-1")]})
        self.answers()
        found = servers(Kubectl(("--context=c",)), "ns", 10265)
        self.assertEqual(["s-1", "s-2"], [each.name for each in found])
        [call] = self.calls()
        self.assertEqual(["--context=c", "--request-timeout=15s"], call[:2])

    def test_none(self) -> None:
        """Missing servers, errors of kubectl, and a missing kubectl are reported."""
        self.raw[PODS] = json.dumps({"items": []})
        self.answers()
        with self.assertRaisesRegex(CommandFailed, "no server runs in namespace ns .*with -n"):
            servers(Kubectl(), "ns", 10265)
        self.raw.clear()
        self.answers()
        with self.assertRaisesRegex(CommandFailed, "^kubectl: Error from .*: connection refused$"):
            servers(Kubectl(), "ns", 10265)
        self.patch(os, "environ", {"PATH": "/nonexistent"})
        with self.assertRaisesRegex(CommandFailed, "kubectl is not installed"):
            servers(Kubectl(), "ns", 10265)

    def test_no_list(self) -> None:
        """An answer that is not a list of pods, such as a proxy's login page, is reported."""
        for answer in ("<html>", "[]", "{}", '{"items": [1]}'):
            self.raw[PODS] = answer
            self.answers()
            with self.assertRaisesRegex(CommandFailed, "is no list of pods"):
                servers(Kubectl(), "ns", 10265)

    def test_empty_list(self) -> None:
        """An empty list of pods is reported like a missing server."""
        for items in ("[]", "null"):
            self.raw[PODS] = f'{{"items": {items}}}'
            self.answers()
            with self.assertRaisesRegex(CommandFailed, "no server runs in namespace ns"):
                servers(Kubectl(), "ns", 10265)

    def test_proxy(self) -> None:
        """A meta port that the API server can reach is queried through the API's proxy."""
        self.raw["/api/v1/namespaces/ns/pods/s-1:10265/proxy/nodes"] = '{"nodes": []}'
        self.answers()
        self.assertEqual({"nodes": []}, servers(Kubectl(), "ns", 10265)[0].get("/nodes"))
        self.assertEqual(2, len(self.calls()))

    def test_forwarded(self) -> None:
        """A meta port on loopback is queried through port-forward, whether ready or not."""
        self.answers({"/nodes": [200, "[]"], "/readyz": [503, "not ready\n"]})
        first = servers(Kubectl(), "ns", 10265)[0]
        self.assertEqual([], first.get("/nodes"))
        self.assertEqual("not ready\n", first.get_text("/readyz"))
        self.assertRaises(NotFound, first.get, "/nodes/nobody")
        self.assertIn("port-forward", self.calls()[-1])

    def test_forwarded_after_warnings(self) -> None:
        """Warnings of kubectl or its credential plugins are not taken for errors."""
        warnings = ("WARNING: the plugin is deprecated", "", "W1201 loader.go:222] no config")
        self.answers({"/nodes": [200, "[]"]}, warnings)
        self.assertEqual([], servers(Kubectl(), "ns", 10265)[0].get("/nodes"))
        self.answers(None, warnings)
        with self.assertRaisesRegex(CommandFailed, "port-forward: error: unable to forward port$"):
            servers(Kubectl(), "ns", 10265)[0].get("/nodes")

    def test_status(self) -> None:
        """A server that has gone since it was found is shown with its error as not ready."""
        proxy = "/api/v1/namespaces/kube-system/pods/s-2:10265/proxy"
        pods = self.raw.pop(PODS)
        self.raw[PODS.replace("/ns/", "/kube-system/")] = pods
        self.raw[f"{proxy}/readyz"] = "nodes: ok\ndisk: full\nready"
        self.raw[f"{proxy}/agents"] = '[{"connected": true}, {"connected": false}]'
        self.answers()
        options = StatusOptions()
        options.parseOptions(["--in-cluster"])
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            self.assertEqual(1, status(options))
        first, second, check = shown.getvalue().splitlines()
        self.assertRegex(first, "^s-1: s-1 cannot be queried: .*, nodes connected: 0$")
        self.assertEqual("s-2: ready, nodes connected: 1", second)
        self.assertEqual("  disk: full", check)

    def test_not_reached(self) -> None:
        """If both ways fail, the last error of kubectl is reported."""
        self.answers()
        with self.assertRaisesRegex(
            CommandFailed, "s-1 cannot be queried: .*unable to forward port"
        ):
            servers(Kubectl(), "ns", 10265)[0].get("/nodes")
