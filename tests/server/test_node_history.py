"""The history of nodes, and its state after a restart."""

from __future__ import annotations

from pathlib import Path

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.pki.directory import StateDirectory
from yurttunnel.server import history_file
from yurttunnel.server.history_file import FILE, MAX_INTERVAL, MIN_INTERVAL, STOPPED, HistoryFile
from yurttunnel.server.node_history import (
    MAX_DISCONNECTIONS,
    MAX_REASON,
    NodeHistory,
    NodeHistoryEntry,
)


def at_once(function, argument):
    """Call the function synchronously, like a thread would."""
    return maybeDeferred(function, argument)


class NodeHistoryTests(SynchronousTestCase):
    """Nodes that connect and leave."""

    def setUp(self) -> None:
        """Start without a history."""
        self.clock = Clock()
        self.clock.advance(1000)
        self.history = NodeHistory(self.clock, max_nodes=3)
        self.events: list[int] = []
        self.history.on_change.append(lambda: self.events.append(1))

    def test_a_node(self) -> None:
        """A node has an address and a version, and once disconnected the time and the reason."""
        self.history.connected("edge-1", "192.0.2.1:1", "1.0")
        self.assertEqual(
            NodeHistoryEntry("edge-1", None, "192.0.2.1:1", "1.0"), self.history.get("edge-1")
        )
        self.clock.advance(5)
        self.history.lost("edge-1", "silent")
        past = self.history.get("edge-1")
        self.assertEqual((1005, "silent", "1.0"), (past.last_seen, past.reason, past.version))
        self.history.connected("edge-1", "192.0.2.1:2", "1.1")
        past = self.history.get("edge-1")
        self.assertEqual((None, "192.0.2.1:2"), (past.last_seen, past.address))
        self.assertEqual(["silent"], [each.reason for each in past.disconnections])
        self.assertEqual(3, len(self.events))

    def test_nothing_new(self) -> None:
        """A node that is still connected is not a change."""
        for _ in range(2):
            self.history.connected("edge-1", "192.0.2.1:1", "1.0")
        self.assertEqual(1, len(self.events))

    def test_an_interruption(self) -> None:
        """A lost connection is a disconnection of a node that is not gone."""
        self.history.connected("edge-1", "192.0.2.1:1", "1.0")
        self.history.interrupted("edge-1", "reset")
        past = self.history.get("edge-1")
        self.assertEqual((None, "reset"), (past.last_seen, past.reason))
        self.history.interrupted("edge-2", "of nobody")
        self.assertIsNone(self.history.get("edge-2"))

    def test_bounds(self) -> None:
        """Nodes, disconnections and reasons are limited; the newest are kept."""
        for number in range(MAX_DISCONNECTIONS + 2):
            self.history.lost("a", f"{number}" * (MAX_REASON + 9))
        kept = self.history.get("a").disconnections
        self.assertEqual(MAX_DISCONNECTIONS, len(kept))
        self.assertEqual(str(MAX_DISCONNECTIONS + 1) * MAX_REASON, kept[0].reason)
        for node in ("b", "c", "d"):
            self.history.lost(node, "silent")
        self.assertEqual(["d", "c", "b"], [each.node for each in self.history.newest_first()])


class HistoryFileTests(SynchronousTestCase):
    """The file."""

    def setUp(self) -> None:
        """Start with an empty directory."""
        self.clock = Clock()
        self.clock.advance(1000)
        self.directory = StateDirectory.open(self.mktemp())
        self.file = Path(self.directory.path) / FILE

    def start(self, in_thread=at_once) -> tuple[NodeHistory, HistoryFile]:
        """Create and start a service that stores a history."""
        history = NodeHistory(self.clock)
        kept = HistoryFile(self.clock, self.directory, history, in_thread)
        kept.startService()
        return history, kept

    def stop(self, kept: HistoryFile) -> None:
        """Stop it, and check that it has ended."""
        self.assertTrue(self.successResultOf(kept.stopService()))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_a_restart(self) -> None:
        """The history is restored; nodes that were connected are lost since."""
        history, kept = self.start()
        history.connected("edge-1", "192.0.2.1:1", "1.0")
        history.lost("edge-1", "silent \u2028\n<b>")
        history.connected("edge-2", "192.0.2.2:1", "1.1")
        gone = history.get("edge-1")
        self.clock.advance(50)
        self.stop(kept)
        self.clock.advance(50)
        history, kept = self.start()
        self.assertEqual(gone, history.get("edge-1"))
        lost = history.get("edge-2")
        self.assertEqual((1050, STOPPED, "1.1"), (lost.last_seen, lost.reason, lost.version))
        self.assertEqual(["edge-2", "edge-1"], [each.node for each in history.newest_first()])
        self.stop(kept)

    def test_a_process_that_is_killed(self) -> None:
        """A killed process loses only the last seconds of the history."""
        history, kept = self.start()
        self.clock.advance(MIN_INTERVAL)
        history.lost("edge-1", "silent")
        self.clock.advance(0)
        self.assertIn("edge-1", self.file.read_text())
        history.lost("edge-2", "silent")
        self.assertNotIn("edge-2", self.file.read_text(), "the disk has its rest")
        self.clock.advance(MIN_INTERVAL)
        self.clock.advance(0)
        self.assertIn("edge-2", self.file.read_text())
        self.clock.pump([MIN_INTERVAL, MAX_INTERVAL])
        self.assertIn(f'"written": {self.clock.seconds()}', self.file.read_text())
        self.stop(kept)

    def test_more_than_can_be_read(self) -> None:
        """Above the limit the latest are kept, in any script."""
        self.patch(history_file, "MAX_BYTES", 10_000)
        history, kept = self.start()
        for number in range(40):
            history.connected(f"edge-{number}", "192.0.2.1:1", "1" * 10_000)
            history.lost(f"edge-{number}", "\u6c38" * 100)
        self.stop(kept)
        self.assertLess(self.file.stat().st_size, 10_100)
        history, kept = self.start()
        known = [each.node for each in history.all()]
        self.assertEqual([f"edge-{number}" for number in range(40 - len(known), 40)], known)
        self.assertGreater(len(known), 10)
        self.stop(kept)

    def test_a_malformed_file(self) -> None:
        """A malformed file is replaced, whatever its contents."""
        good = '{"written": 1.0}\n'
        for content in (
            "",
            "x",
            "[]\n",
            '{"written": "x"}',
            good + "{}",
            good + '{"node": "a", "last_seen": 1, "address": "", "version": "", '
            '"disconnections": 3}',
            good + "\udcff",
        ):
            self.file.write_bytes(content.encode("utf-8", "surrogatepass"))
            history, kept = self.start()
            self.assertEqual([], history.all(), content)
            self.stop(kept)
            self.assertTrue(self.file.read_text().startswith('{"written": '))

    def test_a_full_disk(self) -> None:
        """A failed write is reported while it persists."""
        history, kept = self.start()
        self.directory.path.rename(f"{self.directory.path}-away")
        history.lost("edge-1", "silent")
        self.clock.advance(MIN_INTERVAL)
        self.clock.advance(0)
        self.assertIn("the next start will not know why nodes were lost", kept.problem)
        Path(f"{self.directory.path}-away").rename(self.directory.path)
        self.clock.advance(MAX_INTERVAL)
        self.assertIsNone(kept.problem)
        self.stop(kept)

    def test_a_disk_that_hangs(self) -> None:
        """The process ends nevertheless."""
        _, kept = self.start(lambda function, argument: Deferred())
        stopped = kept.stopService()
        self.assertNoResult(stopped)
        self.clock.pump([1] * 10)
        self.assertFalse(self.successResultOf(stopped))
