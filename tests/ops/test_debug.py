"""``/debug``: access, the content of each page, and changes that are reverted by themselves."""

from __future__ import annotations

import json
import resource
import tracemalloc
from functools import partial
from itertools import count

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import connectionDone
from twisted.internet.task import LoopingCall
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import LogLevel
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.ops.test_http_site import TcpTransport
from tests.ops.test_meta import Answer, parse
from tests.ops.test_slices import SteppedReactor
from tests.tunnel.memory import SessionPair, User
from yurttunnel.ops.debug import sessions as debug_sessions
from yurttunnel.ops.debug.log_level import DEFAULT_SECONDS
from yurttunnel.ops.debug.memory import TRACED_SECONDS
from yurttunnel.ops.debug.service import Debug
from yurttunnel.ops.http_site import LimitedSite
from yurttunnel.ops.lag import ReactorLag
from yurttunnel.ops.log_levels import LogLevelFilter
from yurttunnel.ops.slices import Slices

HERE = "127.0.0.1:10265"


class Pool:
    """A fake thread pool that works on command; tests.e2e.test_diagnose uses the real one."""

    def __init__(self):
        self.busy = False
        self.waiting = []

    def callInThreadWithCallback(self, on_result, function, *arguments):
        """Call ``function`` now, or in :meth:`work` while the pool is busy."""
        self.waiting.append((on_result, function, arguments))
        if not self.busy:
            self.work()

    def work(self):
        """Run the queued calls."""
        while self.waiting:
            on_result, function, arguments = self.waiting.pop()
            try:
                result = function(*arguments)
            except Exception:
                on_result(False, Failure())
            else:
                on_result(True, result)


class PoolReactor(MemoryReactorClock):
    """A reactor with a fake thread pool."""

    def __init__(self):
        super().__init__()
        self.pool = Pool()

    def getThreadPool(self):
        """Return the pool."""
        return self.pool

    def callFromThread(self, function, *arguments):
        """Call ``function``, since there is only one thread."""
        function(*arguments)


class DebugTestCase(SynchronousTestCase):
    """The debug pages without a port."""

    def setUp(self):
        """Make the pages of a process with one session."""
        self.reactor = PoolReactor()
        self.pair = SessionPair(clock=self.reactor)
        self.sessions = [self.pair.server]
        self.lag = ReactorLag(self.reactor)
        self.levels = LogLevelFilter()
        self.tunnelled = set()
        self.debug = Debug(
            self.reactor,
            lambda: self.sessions,
            self.lag,
            self.levels,
            lambda *addresses: addresses in self.tunnelled,
        )
        self.debug.startService()
        self.addCleanup(self.debug.stopService)
        self.site = LimitedSite(self.debug.protected_pages, self.reactor)
        self.addCleanup(self.pair.close)

    def ask(self, path, method="GET", hosts=(HERE,), peer="127.0.0.1", **headers) -> Answer:
        """Request a page below ``/debug`` from the address ``peer``."""
        channel, transport = self.begin(path, method, hosts, peer, **headers)
        while not transport.value():
            # The page is rendered in slices.
            self.reactor.advance(0)
        channel.connectionLost(connectionDone)
        return parse(transport.value())

    def begin(self, path, method="GET", hosts=(HERE,), peer="127.0.0.1", **headers):
        """Send a request in a reactor turn of its own; return both ends of the connection."""
        self.reactor.advance(0)
        kind = IPv6Address if ":" in peer else IPv4Address
        transport = TcpTransport(peerAddress=kind("TCP", peer, 40000))
        channel = self.site.buildProtocol(None)
        channel.makeConnection(transport)
        lines = [f"{method} /debug{path} HTTP/1.1", *(f"Host: {host}" for host in hosts)]
        lines += (f"{name.replace('_', '-')}: {value}" for name, value in headers.items())
        channel.dataReceived("\r\n".join([*lines, "", ""]).encode())
        return channel, transport

    def json(self, path):
        """Return the decoded JSON of a page."""
        answer = self.ask(path)
        self.assertEqual((200, "application/json"), (answer.status, answer.headers["content-type"]))
        return json.loads(answer.body)


class AccessTests(DebugTestCase):
    """Who may access the pages."""

    def test_loopback(self):
        """Clients on loopback are served, in every notation of the address."""
        for peer, host in (
            ("127.0.0.1", "127.0.0.1:10265"),
            ("127.9.9.9", "127.9.9.9:10265"),
            ("::1", "[::1]:10265"),
            ("::ffff:127.0.0.1", "localhost"),
            ("127.0.0.1", "LOCALHOST:8080"),
        ):
            self.assertEqual(200, self.ask("/reactor", peer=peer, hosts=(host,)).status, host)

    def test_other_machines(self):
        """Clients of other machines get 403 and a message, for each page and method."""
        for path in ("/", "/sessions", "/memory", "/nothing", "/sessions/deeper"):
            for method in ("GET", "POST", "HEAD", "DELETE"):
                answer = self.ask(path, method, peer="192.0.2.1")
                self.assertEqual(403, answer.status, path)
                if method != "HEAD":
                    self.assertIn(b"only for this machine", answer.body)
        self.assertEqual(403, self.ask("/", peer="2001:db8::1").status)

    def test_the_tunnel(self):
        """Connections through the tunnel are rejected, although they come from loopback."""
        self.tunnelled.add((IPv4Address("TCP", "127.0.0.1", 40000), TcpTransport().getHost()))
        for path in ("/", "/sessions", "/memory", "/nothing"):
            for method in ("GET", "POST"):
                answer = self.ask(path, method)
                self.assertEqual(403, answer.status, path)
                self.assertIn(b"not served through the tunnel", answer.body)

    def test_unix_socket(self):
        """A connection that is not TCP is rejected, since its origin is unknown."""
        transport = TcpTransport(peerAddress=object())
        channel = self.site.buildProtocol(None)
        channel.makeConnection(transport)
        channel.dataReceived(f"GET /debug HTTP/1.1\r\nHost: {HERE}\r\n\r\n".encode())
        self.assertEqual(403, parse(transport.value()).status)

    def test_allowed_host_names(self):
        """Host names other than localhost are rejected, which prevents DNS rebinding."""
        for hosts in (
            ("evil.example:10265",),
            ("127.0.0.1.evil.example",),
            ("localhost.evil.example",),
            ("192.0.2.1:10265",),
            ("2130706433",),
            ("127.1",),
            ("",),
            (),
            ("localhost", "evil.example"),
            ("127.0.0.1@evil.example",),
        ):
            answer = self.ask("/stacks", hosts=hosts)
            self.assertIn(answer.status, (400, 403), hosts)
            self.assertNotIn(b"thread", answer.body)

    def test_pages_of_other_sites(self):
        """Cross-site requests of a browser are rejected and change nothing."""
        for headers in (
            {"sec_fetch_site": "cross-site"},
            {"sec_fetch_site": "same-site"},
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": "http://localhost:1"},
            {"sec_fetch_site": "same-origin", "origin": "http://evil.example"},
        ):
            for method in ("GET", "POST"):
                answer = self.ask("/log-level?level=debug", method, **headers)
                self.assertEqual(403, answer.status, headers)
        self.assertEqual(LogLevel.info, self.levels.level)

    def test_own_pages(self):
        """Requests of the page itself and of a typed address are served."""
        own = {"sec_fetch_site": "same-origin", "origin": f"http://{HERE}"}
        self.assertEqual(200, self.ask("/log-level?level=warn", "POST", **own).status)
        self.assertEqual(200, self.ask("/", sec_fetch_site="none").status)


class PageTests(DebugTestCase):
    """The content of the pages."""

    def test_index(self):
        """The index links to every other page, and each link works."""
        answer = self.ask("/")
        self.assertEqual("text/html; charset=utf-8", answer.headers["content-type"])
        for name in ("sessions", "reactor", "memory", "stacks", "log-level"):
            self.assertIn(f'href="/debug/{name}"'.encode(), answer.body)
            self.assertEqual(200, self.ask(f"/{name}").status)

    def test_headers(self):
        """Responses forbid caching, content sniffing and loading of other content."""
        for path in ("/", "/sessions"):
            headers = self.ask(path).headers
            self.assertEqual("no-store", headers["cache-control"])
            self.assertEqual("nosniff", headers["x-content-type-options"])
            self.assertEqual("default-src 'none'", headers["content-security-policy"])

    def test_unknown(self):
        """Unknown pages, methods and parameters are rejected with 404, 405 and 400."""
        self.assertEqual(404, self.ask("/nothing").status)
        self.assertEqual(404, self.ask("/sessions/edge-1").status)
        answer = self.ask("/sessions", "POST")
        self.assertEqual((405, "GET, HEAD"), (answer.status, answer.headers["allow"]))
        for path in ("/sessions?nodes=a", "/sessions?node=a&node=b", "/reactor?x=1"):
            self.assertEqual(400, self.ask(path).status, path)

    def test_head(self):
        """The response to HEAD has no body."""
        self.assertEqual(
            (200, b""), (self.ask("/stacks", "HEAD").status, self.ask("/", "HEAD").body)
        )

    def test_session(self):
        """A session is shown with its credit, queues and memory."""
        answer = self.json("/sessions")
        [session] = answer["sessions"]
        self.assertEqual(0, answer["sessions_left_out"])
        self.assertEqual(("edge-1", "attached"), (session["peer"], session["state"]))
        self.assertEqual(self.pair.server.session_id.hex(), session["session"])
        self.assertEqual(session["window"], session["credit_given"])
        self.assertEqual(([], 0), (session["streams"], session["streams_total"]))

    def test_stream(self):
        """A stream is shown with its queued bytes in each direction."""
        near, far = self.pair.joined(User(), User())
        self.pair.pump()
        far.pauseProducing()
        near.write(b"x" * 100_000)
        self.pair.pump()
        self.reactor.advance(2.5)
        [stream] = self.json("/sessions")["sessions"][0]["streams"]
        self.assertEqual(
            ("here", "open", near.request_id),
            (stream["opened"], stream["state"], stream["request_id"]),
        )
        self.assertEqual(2.5, round(stream["age_seconds"], 1))
        sending = stream["sending"]
        self.assertEqual(100_000, sending["bytes"] + sending["waiting"])
        self.assertEqual((0, True), (sending["credit_left"], sending["full"]))
        self.sessions = [self.pair.agent]
        [stream] = self.json("/sessions")["sessions"][0]["streams"]
        receiving = stream["receiving"]
        self.assertEqual(("by the peer", True), (stream["opened"], receiving["paused"]))
        self.assertEqual((sending["bytes"], 0), (receiving["waiting"], receiving["credit_given"]))

    def test_node(self):
        """A parameter restricts the page to one peer."""
        self.assertEqual(1, len(self.json("/sessions?node=edge-1")["sessions"]))
        self.assertEqual([], self.json("/sessions?node=edge-2")["sessions"])

    def test_bounds(self):
        """The numbers of sessions and streams are limited; the page counts those left out."""
        self.patch(debug_sessions, "MAX_SESSIONS", 2)
        self.patch(debug_sessions, "MAX_STREAMS", 3)
        self.sessions = [self.pair.server] * 5
        for _ in range(2):
            self.pair.joined(User(), User())
        answer = self.json("/sessions")
        self.assertEqual(3, answer["sessions_left_out"])
        self.assertEqual([2, 1], [len(each["streams"]) for each in answer["sessions"]])
        self.assertEqual([0, 1], [each["streams_left_out"] for each in answer["sessions"]])

    def test_many_streams(self):
        """A long response is rendered over many reactor turns."""
        reactor = SteppedReactor()
        self.site.slices = Slices(reactor, count().__next__)
        for _ in range(20):
            self.pair.joined(User(), User())
        _, transport = self.begin("/sessions")
        turn_count = 0
        while not transport.value():
            reactor.turn()
            turn_count += 1
        [session] = json.loads(parse(transport.value()).body)["sessions"]
        self.assertEqual(20, len(session["streams"]))
        self.assertGreater(turn_count, 10)

    def test_reactor(self):
        """Lag, delayed calls and descriptors are counted."""
        self.lag.startService()
        self.addCleanup(self.lag.stopService)
        self.reactor.advance(1.5)
        self.reactor.advance(1.0)
        answer = self.json("/reactor")
        self.assertEqual({"latest": 0.0, "worst_of_last_minute": 0.5}, answer["lag_seconds"])
        # The timeout for reading the response started after the count.
        self.assertEqual(len(self.reactor.getDelayedCalls()), answer["delayed_calls"] + 1)
        self.assertEqual({}, answer["readers"])
        self.assertIn("MainThread", answer["threads"])

    def test_stacks(self):
        """Stacks name functions; delayed calls are counted by function, without arguments."""

        def wait(secret):
            pass

        self.reactor.advance(3.0)
        self.reactor.callLater(7.0, wait, "s3cret")
        self.reactor.callLater(5.0, partial(wait, "s3cret"))
        looping = LoopingCall(self.test_stacks, "s3cret")
        looping.clock = self.reactor
        self.reactor.callLater(6.0, looping)
        body = self.ask("/stacks").body.decode()
        self.assertIn("thread MainThread\n", body)
        self.assertIn("test_debug.py", body)
        self.assertRegex(body, r" 2  next in +5\.000 s  \S+test_stacks\.<locals>\.wait\n")
        self.assertRegex(body, r" 1  next in +6\.000 s  \S+\.PageTests\.test_stacks\n")
        self.assertNotIn("s3cret", body.split("delayed calls")[1])


class LogLevelTests(DebugTestCase):
    """A temporary log level."""

    def change(self, query):
        """Request a level."""
        return self.ask(f"/log-level?{query}", "POST")

    def test_reverted(self):
        """The level changes at once, is shown, and is reverted when the time is over."""
        self.assertEqual(b"info\n", self.ask("/log-level").body)
        self.assertEqual(200, self.change("level=debug&seconds=60").status)
        self.assertEqual(LogLevel.debug, self.levels.level)
        self.reactor.advance(20)
        self.assertEqual(b"debug, in 40 s info again\n", self.ask("/log-level").body)
        self.reactor.advance(40)
        self.assertEqual(LogLevel.info, self.levels.level)
        self.assertEqual(b"info\n", self.ask("/log-level").body)

    def test_default(self):
        """The default time is ten minutes."""
        self.change("level=warn")
        self.reactor.advance(DEFAULT_SECONDS - 1)
        self.assertEqual(LogLevel.warn, self.levels.level)
        self.reactor.advance(1)
        self.assertEqual(LogLevel.info, self.levels.level)

    def test_the_usual_level_changes_meanwhile(self):
        """A change of the permanent level takes effect when the temporary level ends."""
        self.change("level=debug&seconds=60")
        self.levels.set(LogLevel.warn, requests=False)
        self.assertEqual(LogLevel.debug, self.levels.level)
        self.assertEqual(b"debug, in 60 s warn again\n", self.ask("/log-level").body)
        self.reactor.advance(60)
        self.assertEqual((LogLevel.warn, False), (self.levels.level, self.levels.requests))

    def test_requests(self):
        """The setting for single requests is restored with the level."""
        self.levels.set(LogLevel.info, requests=False)
        self.change("level=debug")
        self.assertTrue(self.levels.requests)
        self.reactor.advance(DEFAULT_SECONDS)
        self.assertFalse(self.levels.requests)

    def test_twice(self):
        """A second change replaces the first; afterwards the original level is restored."""
        self.change("level=debug&seconds=60")
        self.change("level=warn&seconds=100")
        self.reactor.advance(60)
        self.assertEqual(LogLevel.warn, self.levels.level)
        self.reactor.advance(40)
        self.assertEqual(LogLevel.info, self.levels.level)

    def test_bad(self):
        """Invalid levels and times are rejected and change nothing."""
        for query in (
            "", "level=trace", "level=debug&seconds=0", "level=debug&seconds=-1",
            "level=debug&seconds=86401", "level=debug&seconds=soon", "seconds=5",
            "level=debug&level=info", "level=debug&seconds=%D9%A1",
        ):  # fmt: skip
            answer = self.change(query)
            self.assertEqual(400, answer.status, query)
            self.assertEqual(1, answer.body.count(b"\n"))
        self.assertEqual(LogLevel.info, self.levels.level)

    def test_get_changes_nothing(self):
        """Only POST changes the level."""
        self.ask("/log-level?level=debug")
        self.assertEqual(LogLevel.info, self.levels.level)

    def test_stop(self):
        """Stopping the service restores the level and leaves no timer."""
        self.change("level=debug")
        self.debug.stopService()
        self.assertEqual(LogLevel.info, self.levels.level)
        self.assertEqual(b"info\n", self.ask("/log-level").body)
        delayed = self.ask("/stacks").body.partition(b"delayed calls")[2]
        self.assertNotIn(b"TemporaryLogLevel", delayed)


class MemoryTests(DebugTestCase):
    """Memory usage and allocation tracing."""

    def setUp(self):
        """Stop tracing after the test."""
        super().setUp()
        self.addCleanup(tracemalloc.stop)

    def test_off(self):
        """Without tracing the page shows totals and how to start tracing."""
        body = self.ask("/memory").body.decode()
        self.assertRegex(body, r"resident: \d+\.\d MiB\n")
        self.assertIn("gc generation 2:", body)
        self.assertIn("POST /debug/memory?frames=", body)

    def test_no_free_descriptor(self):
        """Without a free file descriptor the page shows all but the resident memory."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        body = self.ask("/memory").body.decode()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        self.assertIn("resident: unknown\ngc generation 0:", body)

    def test_trace(self):
        """While tracing, the page lists the lines that allocated most, in descending order."""
        self.assertEqual(200, self.ask("/memory?frames=2", "POST").status)
        allocated = bytes(5_000_000)
        body = self.ask("/memory").body.decode()
        first = body.index("KiB in")
        self.assertIn("test_debug.py", body[first : body.index("KiB in", first + 1)])
        self.assertIn("allocated = bytes(5_000_000)", body)
        self.assertEqual(5_000_000, len(allocated))

    def test_end(self):
        """Tracing ends on request, when the service stops, and after a timeout."""
        for end in (
            lambda: self.ask("/memory?frames=0", "POST"),
            self.debug.stopService,
            lambda: self.reactor.advance(TRACED_SECONDS),
        ):
            self.ask("/memory?frames=1", "POST")
            self.assertTrue(tracemalloc.is_tracing())
            end()
            self.assertFalse(tracemalloc.is_tracing())
        self.assertIn(b"tracing is off", self.ask("/memory").body)

    def test_concurrent_snapshots(self):
        """While a snapshot is read for one client, another client gets an error."""
        self.ask("/memory?frames=1", "POST")
        self.reactor.pool.busy = True
        _, transport = self.begin("/memory")
        self.assertEqual(b"", transport.value())
        self.assertIn(b"is being read by another request", self.ask("/memory").body)
        self.reactor.pool.work()
        self.assertIn(b"traced: ", transport.value())

    def test_client_disconnects(self):
        """A client that disconnects during a snapshot does not block the next client."""
        self.ask("/memory?frames=1", "POST")
        self.reactor.pool.busy = True
        channel, transport = self.begin("/memory")
        channel.connectionLost(Failure(ConnectionDone()))
        self.reactor.pool.work()
        self.assertEqual(b"", transport.value())
        self.reactor.pool.busy = False
        self.assertIn(b"traced: ", self.ask("/memory").body)

    def test_end_while_read(self):
        """A client is told when tracing ends before its snapshot is read."""
        self.ask("/memory?frames=1", "POST")
        self.reactor.pool.busy = True
        _, transport = self.begin("/memory")
        self.ask("/memory?frames=0", "POST")
        self.reactor.pool.work()
        self.assertIn(b"tracing has ended", transport.value())

    def test_bad(self):
        """Invalid numbers of frames are rejected."""
        for query in ("", "frames=26", "frames=-1", "frames=x"):
            self.assertEqual(400, self.ask(f"/memory?{query}", "POST").status, query)
        self.assertFalse(tracemalloc.is_tracing())

    def test_defect(self):
        """If the snapshot fails, the client gets 500 and the error is logged."""
        self.ask("/memory?frames=1", "POST")
        self.patch(tracemalloc, "take_snapshot", lambda: 1 / 0)
        self.assertEqual(500, self.ask("/memory").status)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
