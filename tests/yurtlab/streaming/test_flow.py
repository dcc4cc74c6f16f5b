"""Back-pressure on connections of several streams."""

from __future__ import annotations

from twisted.internet.interfaces import IPushProducer
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.tunnel.memory import Producer
from yurtlab.node.streaming.connection import InputBudget, InputGate, ProducerGroup


class ProducerGroupTests(SynchronousTestCase):
    """All producers of a transport are paused and resumed with it."""

    def test_interface(self):
        """The group is a push producer."""
        self.assertTrue(verifyObject(IPushProducer, ProducerGroup()))

    def test_all(self):
        """Each is paused and resumed once."""
        sources, first, second = ProducerGroup(), Producer(), Producer()
        sources.add(first)
        sources.add(second)
        sources.pauseProducing()
        sources.pauseProducing()
        sources.resumeProducing()
        sources.resumeProducing()
        for producer in (first, second):
            self.assertEqual(["pause", "resume"], producer.events)

    def test_added_while_paused(self):
        """A producer added while the transport is full is paused from the start."""
        sources, producer = ProducerGroup(), Producer()
        sources.pauseProducing()
        sources.add(producer)
        self.assertEqual(["pause"], producer.events)
        sources.resumeProducing()
        self.assertEqual(["pause", "resume"], producer.events)

    def test_discarded(self):
        """A discarded producer is not called any more."""
        sources, producer = ProducerGroup(), Producer()
        sources.add(producer)
        sources.discard(producer)
        sources.discard(producer)
        sources.pauseProducing()
        self.assertEqual([], producer.events)

    def test_in_turn(self):
        """If each producer fills the transport when resumed, they are resumed in rotation."""
        sources = ProducerGroup()
        resumed = []

        class Greedy(Producer):
            def resumeProducing(self):
                resumed.append(self)
                sources.pauseProducing()

        producers = [Greedy() for _ in range(3)]
        for producer in producers:
            sources.add(producer)
        sources.pauseProducing()
        for _ in range(6):
            sources.resumeProducing()
        self.assertEqual(producers * 2, resumed)

    def test_stop(self):
        """When the transport is lost no producer is stopped: their users are notified by the
        protocol."""
        sources, producer = ProducerGroup(), Producer()
        sources.add(producer)
        sources.stopProducing()
        sources.pauseProducing()
        self.assertEqual([], producer.events)


class GateTests(SynchronousTestCase):
    """Input is delivered while the gate is open, and buffered within a budget otherwise."""

    def setUp(self):
        """Record the calls of a gate and its budget."""
        self.events = []
        self.budget = InputBudget(
            lambda: self.events.append("paused"), lambda: self.events.append("resumed"), limit=10
        )
        self.gate = InputGate(self.budget)

    def begin(self, deliver=None):
        """Record deliveries."""
        self.gate.begin(deliver or self.events.append, lambda: self.events.append("end"))

    def test_kept_at_first(self):
        """Input before ``begin`` is buffered, with the end."""
        self.gate.receive(b"a")
        self.gate.receive(b"b")
        self.gate.finish()
        self.gate.open()
        self.assertEqual([], self.events)
        self.begin()
        self.assertEqual([b"a", b"b", "end"], self.events)

    def test_shut_before(self):
        """A gate that was shut before ``begin`` stays shut until it is opened."""
        self.gate.receive(b"a")
        self.gate.shut()
        self.begin()
        self.gate.receive(b"b")
        self.gate.finish()
        self.assertEqual([], self.events)
        self.gate.open()
        self.assertEqual([b"a", b"b", "end"], self.events)

    def test_open(self):
        """Input to an open gate is delivered at once."""
        self.begin()
        self.gate.receive(b"a")
        self.gate.receive(b"")
        self.gate.finish()
        self.assertEqual([b"a", "end"], self.events)

    def test_shut_by_delivery(self):
        """Nothing is delivered after the gate was shut, not even from the same read."""

        def deliver(data):
            self.events.append(data)
            self.gate.shut()

        self.gate.receive(b"a")
        self.gate.receive(b"b")
        self.gate.finish()
        self.begin(deliver)
        self.assertEqual([b"a"], self.events)
        self.gate.open()
        self.assertEqual([b"a", b"b"], self.events)
        self.gate.open()
        self.assertEqual([b"a", b"b", "end"], self.events)

    def test_opened_by_delivery(self):
        """Opening the gate during a delivery keeps the order."""

        def deliver(data):
            if data == b"a":
                self.gate.shut()
                self.gate.receive(b"c")
                self.gate.open()
            self.events.append(data)

        self.gate.receive(b"a")
        self.gate.receive(b"b")
        self.begin(deliver)
        self.assertEqual([b"a", b"b", b"c"], self.events)

    def test_budget(self):
        """Above the limit the connection is paused, at half of it resumed."""
        self.gate.receive(b"12345")
        self.gate.receive(b"12345")
        self.assertEqual([], self.events)
        self.gate.receive(b"1")
        self.gate.receive(b"2")
        self.assertEqual(["paused"], self.events)
        self.begin()
        self.assertEqual(["paused", b"12345", b"12345", b"1", b"2"], self.without("resumed"))
        self.assertEqual(1, self.events.count("resumed"))

    def without(self, word):
        """Return the recorded calls, without ``word``."""
        return [item for item in self.events if item != word]

    def test_budget_is_shared(self):
        """All streams of a connection share one budget."""
        other = InputGate(self.budget)
        self.gate.receive(b"1234567")
        other.receive(b"1234567")
        self.assertEqual(["paused"], self.events)
        other.begin(self.events.append, lambda: None)
        self.assertEqual(["paused", b"1234567"], self.events)
        self.begin()
        self.assertEqual(["paused", b"1234567", "resumed", b"1234567"], self.events)

    def test_discard(self):
        """Discarded input frees the budget, and has no end."""
        self.gate.receive(b"12345678901")
        self.gate.discard()
        self.assertEqual(["paused", "resumed"], self.events)
        self.gate.receive(b"x")
        self.gate.finish()
        self.begin()
        self.assertEqual(["paused", "resumed"], self.events)
