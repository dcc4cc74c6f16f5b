"""The audit log of a real server, compared with the transferred data."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.endpoints import UNIXClientEndpoint

from benchmarks.ports import free_ports
from tests.e2e.clients import HttpTarget, Peer, Sink, Source, connect
from tests.e2e.interception import InterceptionTestCase
from tests.e2e.kubelets import Request
from tests.e2e.programs import STOP_SECONDS, Server
from tests.e2e.test_interception_upgrades import SWITCH, Duplex
from yurttunnel.pki.names import CALLER_NAME
from yurttunnel.server.audit_log import CLOSE_TIMEOUT

UPLOAD = 3_000_001
"""Bytes that are sent through a stream."""

BODY = 1_234_567
"""Bytes of a request's body, and of its answer."""

UPGRADED = 5_000_003
"""Bytes that an upgraded connection carries each way."""

DIGEST = 64
"""Bytes that a sink answers."""

SECRET = "S3CRET"


class AuditTests(InterceptionTestCase):
    """``--audit-log-path`` and the content of the log."""

    def entries(self, path: str, kind: str) -> list[dict]:
        """Return the lines of a kind in a file; every line must be a valid entry."""
        entries = map(json.loads, Path(path).read_bytes().splitlines())
        return [entry for entry in entries if entry["kind"] == kind]

    def matches(self, entry: dict, **expected: object) -> None:
        """Require the fields of a line."""
        self.assertEqual({key: entry.get(key) for key in expected}, expected)

    async def upload(self, source: Source) -> None:
        """Have a source send everything, and receive the answer of the sink."""
        await self.within(20, source.when_ended(), "the sink has answered")
        self.assertEqual(source.received, DIGEST)
        source.transport.loseConnection()

    async def test_bytes_are_those_that_were_sent(self) -> None:
        """Entries of streams, bodies and upgraded connections have the right counts, on every
        path.
        """
        far: list[Duplex] = []

        async def kubelet(request: Request) -> None:
            await request.ended()
            if request.path.startswith(b"/exec/"):
                far.append(Duplex(UPGRADED))
                request.switch(far[-1], SWITCH)
            else:
                request.answer(200, b"x" * request.size)

        path = os.path.join(self.directory, "audit.json")
        sink = self.listen(Sink)
        tunnel, frontends = await self.start_with_frontends(
            kubelet, forwards=(sink.port,), server_extra=("--audit-log-path", path)
        )
        await self.upload(await self.connected(tunnel, sink, Source(UPLOAD)))
        await self.upload(await self.dial(tunnel.forward_ports[0], Source(UPLOAD + 1)))
        for door in frontends:
            client = await door.client()
            body = b"x" * BODY
            answer = await client.ask(f"/run/ns/pod/box?cmd={SECRET}", "POST", body=body).whole()
            self.assertEqual(answer.status, 200)
            near = Duplex(UPGRADED)
            target = f"/exec/ns/pod/box?command={SECRET}"
            self.assertEqual((await client.upgrade(target, near).whole()).status, 101)
            await self.within(20, near.has_received(), "the client has everything")
            await self.within(20, far[-1].has_received(), "the kubelet has everything")
            client.transport.loseConnection()
            await self.within(5, client.when_lost(), "the client's connection ends")
        refused = await self.connect(tunnel, "nobody:10250", Peer())
        self.assertEqual(refused.status, 503)
        await tunnel.server.stop()

        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        self.assertNotIn(SECRET, Path(path).read_text())
        stream, no_stream = self.entries(path, "connect")
        user = f"unix:uid={os.getuid()},gid={os.getgid()},pid={os.getpid()}"
        node = {"node": "edge-1", "destination": f"127.0.0.1:{sink.port}"}
        done = {"result": "ended", "code": "done", "bytes_to_caller": DIGEST, **node}
        self.matches(stream, who=user, bytes_from_caller=UPLOAD, **done)
        self.matches(no_stream, who=user, result="refused", status=503, node="nobody")
        (forwarded,) = self.entries(path, "forward")
        self.matches(forwarded, by="address", bytes_from_caller=UPLOAD + 1, **done)
        requests = self.entries(path, "request")
        self.assertEqual(len(requests), 4)
        for run, execution, door in ((*requests[:2], frontends[0]), (*requests[2:], frontends[1])):
            for entry, size, status in ((run, BODY, 200), (execution, UPGRADED, 101)):
                self.matches(
                    entry,
                    by="certificate" if door.secure else "address",
                    who=CALLER_NAME if door.secure else entry["peer"],
                    node="edge-1",
                    destination=door.host,
                    method="POST",
                    namespace="ns",
                    pod="pod",
                    container="box",
                    status=status,
                    upgraded=status == 101,
                    result="ended",
                    bytes_from_caller=size,
                    bytes_to_caller=size,
                )
            self.assertEqual((run["path"], execution["path"]), ("run", "exec"))

    async def test_callers_with_a_certificate(self) -> None:
        """Over TLS, the entry of a CONNECT caller has the name in its certificate."""
        path, port = os.path.join(self.directory, "audit.json"), free_ports.take()
        extra = ("--audit-log-path", path, "--connect-endpoint", f"ssl:{port}")
        target = self.listen(HttpTarget)
        tunnel = await self.start_tunnel(server_extra=extra)
        state = tunnel.server.state
        _, errors, status = await self.run_command(
            "curl", "-sS", "--max-time", "10", "--proxytunnel",
            "--proxy", f"https://localhost:{port}", "--proxy-cacert", f"{state}/ca.crt",
            "--proxy-cert", f"{state}/client.crt", "--proxy-key", f"{state}/client.key",
            "--proxy-user", f"user:{SECRET}", f"http://127.0.0.1:{target.port}/",
        )  # fmt: skip
        self.assertEqual(status, 0, errors)
        await tunnel.server.stop()
        (entry,) = self.entries(path, "connect")
        self.matches(entry, who=CALLER_NAME, by="certificate", node="edge-1", result="ended")
        self.assertTrue(entry["peer"].startswith("127.0.0.1:"))
        self.assertNotIn(SECRET, Path(path).read_text())

    async def test_rotated_by_others(self) -> None:
        """A file renamed by logrotate is not written to any more, and no line is lost."""
        path = os.path.join(self.directory, "audit.json")
        sink = self.listen(Sink)
        tunnel = await self.start_tunnel(server_extra=("--audit-log-path", path))
        await self.upload(await self.connected(tunnel, sink, Source(1)))
        await self.eventually(lambda: os.path.getsize(path), "the line is in the file")
        os.rename(path, f"{path}.1")
        await self.upload(await self.connected(tunnel, sink, Source(2)))
        await self.eventually(lambda: os.path.exists(path), "there is a new file")

        async def counted() -> bool:
            # A line is counted by the thread that has written it, and so after it.
            return await tunnel.server.metric("yurttunnel_server_audit_lines_total") >= 2

        await self.eventually(counted, "both lines are counted")
        await tunnel.server.stop()
        for each, size in ((f"{path}.1", 1), (path, 2)):
            (entry,) = self.entries(each, "connect")
            self.assertEqual(entry["bytes_from_caller"], size)

    async def test_standard_output(self) -> None:
        """Lines are not mixed with the log; a stream that is open when the server stops has a
        line.
        """
        tunnel = await self.start_tunnel(server_extra=("--audit-log-path", "-"), drain=0.2)
        stalled = self.listen(Peer)
        await self.connected(tunnel, stalled, Peer())
        await tunnel.server.stop()
        (line,) = [line for line in tunnel.server.log.splitlines() if line.startswith('{"time":')]
        self.matches(json.loads(line), kind="connect", result="ended", code="going_away")

    async def test_unread_standard_output(self) -> None:
        """Requests are served, the status page reports it, and the server can exit."""
        path = os.path.join(self.directory, "unread")
        os.mkfifo(path)
        unread = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self.addCleanup(os.close, unread)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(unread, b"x" * 4096)
        server = Server(
            reactor,
            self.directory,
            extra=("--audit-log-path", "-"),
            prefix=("sh", "-c", f"exec \"$@\" >'{path}'", "sh"),
        )
        # Else the log would go to standard output, too.
        server.arguments[:0] = ["--log-file", os.path.join(self.directory, "twist.log")]
        server.start()
        self.addCleanup(server.kill)
        await server.ready()
        endpoint = UNIXClientEndpoint(reactor, server.socket_path)
        answer = await connect(endpoint, "nobody:10250", Peer())
        self.assertEqual(answer.status, 503)

        async def is_shown() -> bool:
            _, body = await server.get("/readyz")
            return "audit log: a write takes more than" in body

        await self.eventually(is_shown, "the page tells of it", 20)
        await server.stop(CLOSE_TIMEOUT + STOP_SECONDS)

    async def test_unusable_path(self) -> None:
        """The server does not start if the log cannot be written, and reports why."""
        tunnel = self.make_tunnel(server_extra=("--audit-log-path", f"{self.directory}/no/file"))
        tunnel.server.start()
        self.assertNotEqual(await tunnel.server.ended(20), 0)
        self.assertIn("--audit-log-path: ", tunnel.server.log)
        self.assertIn("No such file or directory", tunnel.server.log)
