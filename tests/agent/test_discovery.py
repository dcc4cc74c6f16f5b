"""Discovery of the servers' addresses by the agent."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

from twisted.internet.defer import fail
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from tests.agent.kubernetes_objects import NAMESPACE, node, service, slice_of
from tests.kube.fakes import FakeKubeClient
from yurttunnel.agent.address_file import FILE_NAME, AddressFile
from yurttunnel.agent.discovery import DiscoveredAddresses
from yurttunnel.agent.server_addresses import FixedAddresses
from yurttunnel.cluster.services import SERVICE
from yurttunnel.kube.errors import ApiUnreachable, NotAllowed
from yurttunnel.kube.informer import Informers
from yurttunnel.kube.resources import ENDPOINT_SLICES, NODES, SERVICES
from yurttunnel.pki.directory import StateDirectory, StateError


class DiscoveryTests(SynchronousTestCase):
    """The servers' service, in an API in memory."""

    def setUp(self):
        """Start an API without the service, and create an agent's discovery."""
        self.clock = Clock()
        self.clock.advance(1_700_000_000)
        self.client = FakeKubeClient(self.clock)
        self.directory = Path(self.mktemp())
        self.directory.mkdir()
        self.make()

    def make(self):
        """Create an agent's informers and its discovery."""
        self.informers = Informers(self.clock, self.client)
        self.found = DiscoveredAddresses(self.informers, NAMESPACE, AddressFile(self.directory))
        self.events = []
        self.found.follow(self.events.append)
        self.addCleanup(self.stop)

    def start(self):
        """Start."""
        self.informers.startService()
        self.found.startService()
        self.clock.advance(0)

    def stop(self):
        """Stop; nothing may remain."""
        if self.found.running:
            self.found.stopService()
            self.informers.stopService()
        self.assertEqual([], self.clock.getDelayedCalls())

    def hosts(self):
        """Return the hosts reported last, without ports."""
        return [host for host, _ in self.events[-1]] if self.events else None

    def kept(self):
        """Return the addresses on disk."""
        return json.loads((self.directory / FILE_NAME).read_bytes())

    def pass_time(self, seconds):
        """Advance the clock."""
        for _ in range(round(seconds)):
            self.clock.advance(1)

    def test_balancer(self):
        """The addresses of a load balancer are reported, and stored on disk."""
        self.client.put(SERVICES, service("LoadBalancer", ingress=[{"hostname": "lb.example"}]))
        self.start()
        self.assertEqual([(("lb.example", 10262),)], self.events)
        self.assertEqual(["lb.example:10262"], self.kept())
        self.assertIsNone(self.found.problem())

    def test_change(self):
        """Changes of the service are followed, and reported once each."""
        self.client.put(SERVICES, service("LoadBalancer", ingress=[{"ip": "192.0.2.1"}]))
        self.start()
        self.client.put(SERVICES, service("LoadBalancer", ingress=[{"ip": "192.0.2.2"}]))
        changed = service("LoadBalancer", ingress=[{"ip": "192.0.2.2"}])
        changed["metadata"]["labels"] = {"another": "label"}
        self.client.put(SERVICES, changed)
        self.assertEqual([(("192.0.2.1", 10262),), (("192.0.2.2", 10262),)], self.events)
        self.assertEqual(["192.0.2.2:10262"], self.kept())

    def test_late_subscriber(self):
        """A late follower is notified at once."""
        self.client.put(SERVICES, service("ClusterIP", annotation="a:1"))
        self.start()
        late = []
        self.found.follow(late.append)
        self.assertEqual([(("a", 1),)], late)

    def test_nodes(self):
        """Added, removed and changed cloud nodes are followed; other nodes are not requested."""
        self.client.put(SERVICES, service("NodePort"))
        self.client.put(NODES, node("192.0.2.1", name="cloud-1"))
        self.client.put(NODES, node("192.0.2.66", name="edge-1", edge="true"))
        self.start()
        self.assertEqual(["192.0.2.1"], self.hosts())
        self.client.put(NODES, node("192.0.2.2", name="cloud-2"))
        self.assertEqual(["192.0.2.1", "192.0.2.2"], self.hosts())
        self.client.remove(NODES, "cloud-1")
        self.assertEqual(["192.0.2.2"], self.hosts())

    def test_only_what_is_needed(self):
        """Nodes and slices are listed only for the types of service that need them."""
        self.client.put(SERVICES, service("LoadBalancer", ingress=[{"ip": "192.0.2.1"}]))
        self.start()
        self.assertEqual({"services"}, {plural for _, plural, _ in self.client.calls})

    def test_slices(self):
        """Ready endpoints are followed; if there are none, the previous ones stay."""
        self.client.put(SERVICES, service("ClusterIP"))
        self.client.put(ENDPOINT_SLICES, slice_of("192.0.2.1"))
        self.client.put(ENDPOINT_SLICES, slice_of("192.0.2.9", name="x-tunnel-server-svc-2"))
        other = slice_of("192.0.2.77", name="other")
        other["metadata"]["labels"] = {"kubernetes.io/service-name": "other"}
        self.client.put(ENDPOINT_SLICES, other)
        self.start()
        self.assertEqual([(("192.0.2.1", 10262), ("192.0.2.9", 10262))], self.events)
        self.client.remove(ENDPOINT_SLICES, "x-tunnel-server-svc-2", NAMESPACE)
        self.assertEqual(["192.0.2.1"], self.hosts())
        self.client.put(ENDPOINT_SLICES, slice_of("192.0.2.1", ready=False))
        self.assertEqual(["192.0.2.1"], self.hosts())
        self.assertIn("no ready endpoint", self.found.problem())
        self.client.put(ENDPOINT_SLICES, slice_of("192.0.2.3"))
        self.assertEqual(["192.0.2.3"], self.hosts())
        self.assertIsNone(self.found.problem())

    def test_type_changes(self):
        """Another type of the service is handled in its own way."""
        self.client.put(SERVICES, service("NodePort"))
        self.client.put(NODES, node("192.0.2.1"))
        self.client.put(ENDPOINT_SLICES, slice_of("192.0.2.5"))
        self.start()
        self.client.put(SERVICES, service("ClusterIP"))
        self.assertEqual([("192.0.2.5", 10262)], list(self.events[-1]))

    def test_no_service(self):
        """Without the service the message says what to do; it is found once it exists."""
        self.start()
        self.assertIn(f"no service {NAMESPACE}/{SERVICE}", self.found.problem())
        self.assertIn("--tunnelserver-addr", self.found.problem())
        self.assertEqual([], self.events)
        self.client.put(SERVICES, service("ClusterIP", annotation="a:1"))
        self.assertEqual(["a"], self.hosts())

    def test_service_goes(self):
        """When the service is deleted, its addresses stay in use."""
        self.client.put(SERVICES, service("ClusterIP", annotation="a:1"))
        self.start()
        self.client.remove(SERVICES, SERVICE, NAMESPACE)
        self.assertEqual((1, ["a:1"]), (len(self.events), self.kept()))
        self.assertIn("no service", self.found.problem())

    def refuse(self, refused, error=None):
        """Have the API reject lists of a kind of objects."""
        listed = self.client.list
        error = error or NotAllowed(403, "Forbidden", f"{refused.plural} is forbidden")

        def refuse(resource, *arguments, **more):
            if resource is not refused:
                return listed(resource, *arguments, **more)
            return fail(error)

        self.patch(self.client, "list", refuse)

    def test_what_kubelets_may_not(self):
        """What the API denies to kubelets is reported, with the alternatives."""
        for kind, refused in (("NodePort", NODES), ("ClusterIP", ENDPOINT_SLICES)):
            self.refuse(refused)
            self.client.put(SERVICES, service(kind))
            self.make()
            self.start()
            problem = self.found.problem()
            for words in (
                f"{refused.plural} is forbidden",
                "--tunnelserver-addr",
                "annotation x-tunnel-server-external-addr",
                "service account of deploy/base",
            ):
                self.assertIn(words, problem)
            self.client.put(SERVICES, service(kind, annotation="a:1"))
            self.assertEqual(["a"], self.hosts())
            self.assertIsNone(self.found.problem())
            self.client.remove(SERVICES, SERVICE, NAMESPACE)
            self.assertIn("no service", self.found.problem())
            self.client.put(SERVICES, service(kind))
            self.assertIn("deploy/base", self.found.problem())
            self.stop()

    def test_other_errors(self):
        """Permissions are not mentioned if the API does not respond, or rejects the credentials."""
        self.client.put(SERVICES, service("NodePort"))
        for error in (ApiUnreachable("no answer"), NotAllowed(401, "Unauthorized", "who?")):
            self.refuse(NODES, error)
            self.make()
            self.start()
            self.assertIn("has not returned nodes", self.found.problem())
            self.assertNotIn("deploy/base", self.found.problem())
            self.stop()

    def test_not_allowed(self):
        """A denied request is reported, and does not keep other objects from being followed."""
        self.refuse(NODES)
        self.client.put(SERVICES, service("NodePort"))
        self.start()
        self.assertIn("nodes with openyurt.io/is-edge-worker=false", self.found.problem())
        self.assertIn("nodes is forbidden", self.informers.problem())
        self.client.put(SERVICES, service("NodePort", annotation="a:1"))
        self.pass_time(60)
        self.assertEqual(["a"], self.hosts())

    def test_start_without_api(self):
        """An agent that starts while the API is unreachable uses the last known addresses."""
        self.client.put(SERVICES, service("ClusterIP", annotation="a:1,[fd00::1]:2"))
        self.start()
        self.stop()
        self.client.fail(ApiUnreachable("no answer"))
        self.make()
        self.start()
        self.assertEqual([(("a", 1), ("fd00::1", 2))], self.events)
        self.assertIn("has not returned", self.found.problem())
        self.pass_time(3600)
        self.client.put(SERVICES, service("ClusterIP", annotation="b:1"))
        self.client.recover()
        self.pass_time(120)
        self.assertEqual(["b"], self.hosts())
        self.assertIsNone(self.found.problem())

    def test_disk_that_is_full_for_a_while(self):
        """A failed write is repeated with the next change, or else at the end."""
        self.client.put(SERVICES, service("ClusterIP", annotation="a:1"))
        self.start()
        full = StateError("no space left")
        with mock.patch.object(StateDirectory, "write", side_effect=full):
            self.client.put(SERVICES, service("ClusterIP", annotation="b:1"))
            self.pass_time(1)
        self.assertEqual((["b"], ["a:1"]), (self.hosts(), self.kept()))
        self.client.put(SERVICES, service("ClusterIP", annotation=" b:1"))
        self.pass_time(1)
        self.assertEqual((2, ["b:1"]), (len(self.events), self.kept()))
        with mock.patch.object(StateDirectory, "write", side_effect=full):
            self.client.put(SERVICES, service("ClusterIP", annotation="c:1"))
            self.pass_time(1)
        self.stop()
        self.assertEqual(["c:1"], self.kept())

    def test_api_unreachable(self):
        """An outage of the API of any length changes nothing; changes are seen afterwards."""
        self.client.put(SERVICES, service("ClusterIP", annotation="a:1"))
        self.start()
        self.client.fail(ApiUnreachable("no answer"))
        self.pass_time(3600)
        self.assertEqual(["a"], self.hosts())
        self.client.put(SERVICES, service("ClusterIP", annotation="b:1"))
        self.client.recover()
        self.pass_time(120)
        self.assertEqual(["b"], self.hosts())

    def test_stop(self):
        """After the end nothing is reported."""
        self.client.put(SERVICES, service("ClusterIP", annotation="a:1"))
        self.start()
        self.found.stopService()
        self.client.put(SERVICES, service("ClusterIP", annotation="b:1"))
        self.assertEqual(["a"], self.hosts())
        self.informers.stopService()


class FixedTests(SynchronousTestCase):
    """``--tunnelserver-addr``."""

    def test_reported_once(self):
        """The addresses are reported once, unchanged."""
        events = []
        fixed = FixedAddresses([("a", 1)])
        fixed.follow(events.append)
        self.assertEqual(([[("a", 1)]], None), (events, fixed.problem()))


class AddressFileTests(SynchronousTestCase):
    """The list on disk."""

    def setUp(self):
        """Create a directory."""
        self.directory = Path(self.mktemp())
        self.directory.mkdir()
        self.file = AddressFile(self.directory)

    def test_round_trip(self):
        """A written list is read again, and the file is readable by its owner only."""
        written = (("a", 1), ("fd00::1", 10262), ("192.0.2.1", 65535))
        self.file.write(written)
        self.assertEqual(written, self.file.read())
        self.assertEqual(0o600, (self.directory / FILE_NAME).stat().st_mode & 0o777)
        self.file.write([("a", number + 1) for number in range(1000)])
        self.assertEqual(1000, len(self.file.read()))

    def test_none(self):
        """Without a file there are no addresses."""
        self.assertEqual((), self.file.read())

    def test_unusable(self):
        """A file with other contents is not used, whatever they are."""
        for content in (
            b"",
            b"\xff\xfe",
            b"{}",
            b'["a"]',
            b'["a:0"]',
            b"[1]",
            b'["https://a:1"]',
            b"[" * 50_000,
            b"[" * 100_000,
            b'["' + b"a" * 70_000 + b':1"]',
            json.dumps([f"a:{number + 1}" for number in range(1001)]).encode(),
        ):
            (self.directory / FILE_NAME).write_bytes(content)
            self.assertEqual((), self.file.read(), content[:20])

    def test_link(self):
        """A symbolic link is not followed."""
        (self.directory / FILE_NAME).symlink_to("/etc/passwd")
        self.assertEqual((), self.file.read())

    def test_cannot_write(self):
        """A missing directory is reported, and is not fatal."""
        with capturedLogs() as events:
            AddressFile(self.directory / "missing").write([("a", 1)])
        self.assertIn("missing", events[0]["problem"])
