"""Events: their content, counts and limits, and lost ones."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.kube.fakes import FakeKubeClient
from tests.logged import Logged
from yurttunnel.kube import events
from yurttunnel.kube.errors import ApiUnreachable
from yurttunnel.kube.events import BURST, REFILL_SECONDS, EventRecorder
from yurttunnel.kube.resources import EVENTS

UNREACHABLE = ApiUnreachable("POST https://api:6443/api/v1/events: connection refused")


def about(name="settings", namespace="kube-system", kind="ConfigMap"):
    """Create an object for an event."""
    metadata = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "17"}
    if namespace is not None:
        metadata["namespace"] = namespace
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata}


class EventRecorderTests(SynchronousTestCase):
    """Events in an API in memory."""

    def setUp(self):
        """Create a recorder, which is not started."""
        self.clock = Clock()
        self.clock.advance(1_800_000_000)
        self.client = FakeKubeClient(self.clock)
        self.make_recorder()
        self.lines = Logged(self)

    def make_recorder(self):
        """Create a recorder, which is not started."""
        self.recorder = EventRecorder(self.clock, self.client, "yurttunnel-server", "host_1")

    def record(self, message="something", **what):
        """Record an event."""
        self.recorder.record(about(**what), "Warning", "Bad", message)

    def written(self):
        """Return the events in the API."""
        return self.client.objects(EVENTS)

    def calls(self, verb):
        """Return the number of calls with a verb."""
        return len([call for call in self.client.calls if call[0] == verb])

    def test_written(self):
        """An event has the fields that client-go's recorder sets."""
        self.record()
        [event] = self.written()
        metadata = event.pop("metadata")
        self.assertEqual("kube-system", metadata["namespace"])
        self.assertEqual(f"settings.{1_800_000_000 * 10**9:x}", metadata["name"])
        time = "2027-01-15T08:00:00Z"
        self.assertEqual(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "involvedObject": {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "namespace": "kube-system",
                    "name": "settings",
                    "uid": "uid-of-settings",
                    "resourceVersion": "17",
                },
                "type": "Warning",
                "reason": "Bad",
                "message": "something",
                "source": {"component": "yurttunnel-server", "host": "host_1"},
                "reportingComponent": "yurttunnel-server",
                "reportingInstance": "host_1",
                "firstTimestamp": time,
                "lastTimestamp": time,
                "count": 1,
            },
            event,
        )

    def test_of_the_cluster(self):
        """Events about cluster-scoped objects are in the namespace default."""
        self.record(name="edge-1", namespace=None, kind="Node")
        [event] = self.written()
        self.assertEqual("default", event["metadata"]["namespace"])
        self.assertNotIn("namespace", event["involvedObject"])

    def test_repeated(self):
        """A repeated event increments the count of the first."""
        self.record()
        self.clock.advance(60)
        self.record()
        self.assertEqual((1, 1), (self.calls("create"), self.calls("update")))
        [event] = self.written()
        self.assertEqual(2, event["count"])
        self.assertEqual("2027-01-15T08:00:00Z", event["firstTimestamp"])
        self.assertEqual("2027-01-15T08:01:00Z", event["lastTimestamp"])

    def test_different(self):
        """Another message, type, reason or object is another event, even at the same moment."""
        self.record()
        self.record("something else")
        self.record(name="others")
        self.recorder.record(about(), "Normal", "Bad", "something")
        self.recorder.record(about(), "Warning", "Worse", "something")
        self.assertEqual([1] * 5, [event["count"] for event in self.written()])

    def test_expired(self):
        """An event that the API has deleted is created again, with its count."""
        self.record()
        [event] = self.written()
        self.client.remove(EVENTS, event["metadata"]["name"], "kube-system")
        self.record()
        [event] = self.written()
        self.assertEqual(2, event["count"])

    def test_unreachable(self):
        """Events that cannot be written are logged with a rate limit, and written when repeated."""
        self.client.fail(UNREACHABLE)
        self.record()
        self.record("more")
        lost = [line for line in self.lines if "is lost" in line]
        self.assertEqual(
            [f"the event Bad about ConfigMap kube-system/settings is lost: {UNREACHABLE}"], lost
        )
        self.client.recover()
        self.record()
        [event] = self.written()
        self.assertEqual(2, event["count"])

    def test_one_at_a_time(self):
        """One event is written at a time; repetitions meanwhile are written as one."""
        self.client.hold()
        self.record("first")
        for _ in range(5):
            self.record("second")
        self.assertEqual(1, self.calls("create"))
        self.client.release()
        self.assertEqual(2, self.calls("create"))
        self.assertEqual(0, self.calls("update"))
        self.assertEqual({"first": 1, "second": 5}, self.counts())

    def counts(self):
        """Return counts by message."""
        return {event["message"]: event["count"] for event in self.written()}

    def test_repeated_while_written(self):
        """A repetition of an event that is being written is not lost."""
        self.client.hold()
        self.record()
        self.record()
        self.client.release()
        self.assertEqual({"something": 2}, self.counts())

    def test_queue_is_bounded(self):
        """Events over the queue's limit are dropped and logged."""
        self.patch(events, "MAX_WAITING", 3)
        self.client.hold()
        for number in range(6):
            self.record(str(number))
        self.client.release()
        self.assertEqual({"0", "1", "2", "3"}, self.counts().keys())
        self.assertEqual(1, len([line for line in self.lines if "others wait" in line]))

    def test_burst(self):
        """The events of one object are rate-limited, without an effect on others."""
        for number in range(BURST + 10):
            self.record(str(number))
        self.record(name="others")
        self.assertEqual(BURST + 1, len(self.written()))
        self.clock.advance(REFILL_SECONDS)
        self.record("later")
        self.record("too many")
        self.assertEqual(BURST + 2, len(self.written()))

    def test_counted_though_limited(self):
        """Repetitions that are not written are still counted."""
        for _ in range(BURST + 10):
            self.record()
        self.assertEqual({"something": BURST}, self.counts())
        self.clock.advance(REFILL_SECONDS)
        self.record()
        self.assertEqual({"something": BURST + 11}, self.counts())

    def test_memory_is_bounded(self):
        """The number of remembered events is limited; the least recently used one is evicted."""
        self.patch(events, "MAX_REMEMBERED", 2)
        self.make_recorder()
        for message in ("a", "b", "a", "c", "b"):
            self.record(message)
        counts = [(event["message"], event["count"]) for event in self.written()]
        self.assertEqual([("a", 2), ("b", 1), ("c", 1), ("b", 1)], counts)

    def test_long(self):
        """Messages and names that are too long are truncated, between characters."""
        self.record("ü" * 1000, name="n" * 253)
        [event] = self.written()
        self.assertLessEqual(len(event["message"].encode()), 1024)
        self.assertTrue(event["message"].endswith("ü..."))
        self.assertEqual(253, len(event["metadata"]["name"]))

    def test_long_name_of_many_parts(self):
        """A truncated name remains valid (RFC 1123): labels end with a letter or a digit."""
        for part in ("n-", "n."):
            self.record(name=part * 126 + "n")
        label = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
        for event in self.written():
            self.assertRegex(event["metadata"]["name"], rf"\A{label}(\.{label})*\Z")

    def test_answer_is_lost(self):
        """An event whose creation was not confirmed is counted further, not lost."""
        self.client.hold()
        self.record()
        self.successResultOf(self.recorder.stopService())
        self.client.release()
        self.recorder.startService()
        self.record()
        self.assertEqual({"something": 2}, self.counts())

    def test_no_object(self):
        """A reference that is not an object is logged, and nothing is raised."""
        for involved in (None, [], {}, {"metadata": None}, {"metadata": {"name": "a"}}):
            self.recorder.record(involved, "Warning", "Bad", "something")
        self.assertEqual([], self.written())
        self.assertTrue(any("does not refer to an object" in line for line in self.lines))

    def test_stop(self):
        """Stopping cancels the write in progress and drops the queue, until the next start."""
        self.recorder.startService()
        self.client.hold()
        self.record("a")
        self.record("b")
        self.successResultOf(self.recorder.stopService())
        self.client.release()
        self.record("c")
        self.assertEqual({"a"}, self.counts().keys())
        self.recorder.startService()
        self.record("d")
        self.assertEqual({"a", "d"}, self.counts().keys())
