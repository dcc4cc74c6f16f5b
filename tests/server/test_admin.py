"""A server's admin socket: join tokens and revocations, without leaking secrets."""

from __future__ import annotations

import json
import re
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.protocol import connectionDone
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.kept_secrets import secrets_in
from tests.ops.admin_sites import AdminSite
from tests.pki.support import state_directory
from tests.server.admin_pages import CONNECTED, LOST, ServerPages, ThreadlessReactor
from yurttunnel.agent.options import JOIN_TOKEN
from yurttunnel.ops.admin_socket import admin_pages
from yurttunnel.ops.configuration.sources import variable_of
from yurttunnel.ops.listen import listen_tcp
from yurttunnel.pki.token import JOIN_TOKEN_FILE, MAX_TOKENS, JoinToken, TokenRefused, TokenStore
from yurttunnel.server.admin import ForwardPages
from yurttunnel.server.frontends.forward import ForwardFactory
from yurttunnel.server.frontends.forwards import Forwards
from yurttunnel.server.join_command import TOKEN_VARIABLE, agent_command, command_with_token
from yurttunnel.server.options import Options
from yurttunnel.server.registry import SessionRegistry


class AdminCase(SynchronousTestCase):
    """The pages of a server with its own directory, and one node."""

    def setUp(self) -> None:
        """Create them."""
        self.reactor = ThreadlessReactor()
        self.reactor.advance(1_800_000_000)
        self.directory = state_directory(self)
        self.pages = pages = ServerPages(self.reactor, self.directory)
        self.addCleanup(pages.reset_debug)
        self.tokens, self.revocations, self.site = pages.tokens, pages.revocations, pages.site

    def json(self, target: str, method: str = "GET"):
        """Make a request that must succeed."""
        answer = self.site.ask(target, method)
        self.assertEqual(200, answer.status, answer.body)
        return json.loads(answer.body)

    def refused(self, target: str, status: int) -> str:
        """Request a change that is rejected; return the message."""
        answer = self.site.ask(target, "POST")
        self.assertEqual(status, answer.status, answer.body)
        return answer.body.decode()


class TokenTests(AdminCase):
    """Join tokens."""

    def test_created(self) -> None:
        """A created token enrolls nodes for the requested time, and comes with a command."""
        made = self.json("/v1/tokens?lifetime=90m", "POST")
        token = JoinToken.parse(made["token"])
        self.assertEqual(made["id"], self.tokens.check(token.token_id, token.secret).token_id)
        command = command_with_token(self.pages.settings, str(token))
        self.assertEqual(command, made["command"])
        self.assertEqual("2027-01-15T09:30:00Z", made["expires"])
        self.reactor.advance(90 * 60)
        self.assertRaises(TokenRefused, self.tokens.check, token.token_id, token.secret)

    def test_listed(self) -> None:
        """Valid tokens are listed without their secrets, and with whether they are in the file."""
        made = self.json("/v1/tokens", "POST")
        listed = self.json("/v1/tokens")["tokens"]
        in_file = JoinToken.parse(self.directory.read(JOIN_TOKEN_FILE).decode())
        self.assertEqual(
            [(in_file.token_id, True), (made["id"], False)],
            [(each["id"], each["in_file"]) for each in listed],
        )
        text = json.dumps(listed)
        for token in (in_file, JoinToken.parse(made["token"])):
            self.assertNotIn(token.secret, text)

    def test_revoked(self) -> None:
        """A revoked token enrolls nobody; the one in the file is replaced at once."""
        in_file = JoinToken.parse(self.directory.read(JOIN_TOKEN_FILE).decode())
        self.json(f"/v1/tokens/revoke?id={in_file.token_id}", "POST")
        self.assertRaises(TokenRefused, self.tokens.check, in_file.token_id, in_file.secret)
        again = TokenStore(self.reactor, self.directory, self.pages.trust.authority.pin)
        self.assertRaises(TokenRefused, again.check, in_file.token_id, in_file.secret)
        new = JoinToken.parse(self.directory.read(JOIN_TOKEN_FILE).decode())
        self.assertEqual(new.token_id, again.check(new.token_id, new.secret).token_id)

    def test_refused(self) -> None:
        """Invalid requests get a message, and change nothing."""
        for target, status, expected in (
            ("tokens?lifetime=soon", 400, "lifetime: 'soon' is not a duration"),
            ("tokens?lifetime=0", 400, "one second to 365 days"),
            ("tokens?lifetime=366d", 400, "one second to 365 days"),
            ("tokens?life=1h", 400, "parameters of this page, each once: lifetime"),
            ("tokens/revoke", 400, "id is missing"),
            ("tokens/revoke?id=unknown", 409, "there is no join token with this id"),
        ):
            self.assertIn(expected, self.refused(f"/v1/{target}", status), target)
        self.assertEqual(1, len(self.tokens.valid()))

    def test_too_many(self) -> None:
        """Creating a token revokes no other; above the limit it is rejected."""
        for _ in range(MAX_TOKENS - 1):
            self.json("/v1/tokens", "POST")
        self.assertIn("revoke one first", self.refused("/v1/tokens", 409))
        self.assertEqual(MAX_TOKENS, len(self.tokens.valid()))

    def test_unreadable(self) -> None:
        """A file that others could read is not accepted as a secret: the message has the remedy."""
        (self.directory.path / JOIN_TOKEN_FILE).chmod(0o644)
        answer = self.site.ask("/v1/tokens")
        self.assertEqual(500, answer.status)
        self.assertIn(b"chmod 0600 it", answer.body)

    def test_revoked_while_the_file_cannot_be_replaced(self) -> None:
        """A token is revoked and reported nevertheless; the file's problem is logged."""
        made = self.json("/v1/tokens", "POST")
        (self.directory.path / JOIN_TOKEN_FILE).chmod(0o644)
        self.assertEqual(
            {"id": made["id"]}, self.json(f"/v1/tokens/revoke?id={made['id']}", "POST")
        )
        self.assertNotIn(made["id"], [each.token_id for each in self.tokens.valid()])


class ForwardPagesTests(SynchronousTestCase):
    """Forwards that are opened and closed."""

    def setUp(self) -> None:
        """Create a server that listens, without a forward."""
        self.reactor = MemoryReactorClock()
        self.forwards: Forwards | None = None
        pages = ForwardPages(lambda: self.forwards).pages()
        self.site = AdminSite(self.reactor, admin_pages({}, {}, pages))
        registry = SessionRegistry(self.reactor)
        self.ready = Forwards(
            lambda forward: ForwardFactory(registry, forward),
            partial(listen_tcp, self.reactor),
            (),
        )
        self.ready.listen()

    def post(self, target: str) -> tuple[int, str]:
        """Request a change; return status and response."""
        data = self.site.send(f"POST /v1/{target} HTTP/1.0\r\n\r\n".encode())
        head, _, body = data.partition(b"\r\n\r\n")
        return int(head.split()[1]), body.decode()

    def listed(self) -> list[tuple[object, ...]]:
        """Return the open forwards."""
        listed = json.loads(self.site.ask("/v1/forwards").body)["forwards"]
        return [
            (each["listen"], each["node"], each["target"], each["origin"], each["connections"])
            for each in listed
        ]

    def test_changes(self) -> None:
        """A forward is opened, listed, replaced only on request, and closed."""
        self.forwards = self.ready
        self.assertEqual([], self.listed())
        self.assertEqual(200, self.post("forwards?forward=9000=edge-1/127.0.0.1:80")[0])
        self.assertEqual(
            [("127.0.0.1:9000", "edge-1", "127.0.0.1:80", "command", 0)], self.listed()
        )
        other = "forwards?forward=9000=edge-2/127.0.0.1:81"
        status, sentence = self.post(other)
        self.assertEqual(409, status)
        self.assertIn("is open already", sentence)
        self.assertEqual(200, self.post(f"{other}&replace=true")[0])
        self.assertEqual("edge-2", self.listed()[0][1])
        status, body = self.post("forwards/remove?listen=127.0.0.1:9000")
        self.assertEqual((200, "edge-2"), (status, json.loads(body)["node"]))
        self.assertEqual([], self.listed())
        self.assertEqual(409, self.post("forwards/remove?listen=9000")[0])

    def test_refused(self) -> None:
        """A malformed request is rejected, and so is one before the server listens."""
        for target in ("forwards", "forwards?forward=9000", "forwards/remove?listen=x",
                       "forwards?forward=9000=edge-1/127.0.0.1:80&replace=1"):  # fmt: skip
            self.assertEqual(400, self.post(target)[0], target)
        self.assertEqual([], self.listed())
        for target in ("forwards?forward=9000=edge-1/127.0.0.1:80", "forwards/remove?listen=9"):
            self.assertEqual(409, self.post(target)[0], target)


class RevocationTests(AdminCase):
    """Revoked nodes."""

    def setUp(self) -> None:
        """Record which sessions are closed."""
        super().setUp()
        self.ended: list[str] = []
        self.revocations.on_revoked(self.ended.append)

    def revoke(self, node: str) -> tuple[int, str]:
        """Request a revocation, and wait for its thread."""
        answer = self.pages.send(f"POST /v1/revocations?node={node} HTTP/1.0\r\n\r\n".encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body.decode()

    def test_revoked(self) -> None:
        """A node is revoked on disk, its session ends at once, and it is listed."""
        status, body = self.revoke("edge-1")
        self.assertEqual(200, status, body)
        self.assertEqual("edge-1", json.loads(body)["node"])
        self.assertEqual(["edge-1"], self.ended)
        listed = self.json("/v1/revocations")["revocations"]
        self.assertEqual(["edge-1"], [each["node"] for each in listed])

    def test_several_at_once(self) -> None:
        """Concurrent revocations are made one after the other."""
        begun = [
            self.site.begin(f"POST /v1/revocations?node={node} HTTP/1.0\r\n\r\n".encode())
            for node in ("edge-1", "edge-2", "edge-3")
        ]
        self.pages.reactor.run_due()
        for channel, transport in begun:
            self.assertIn(b" 200 ", transport.value())
            channel.connectionLost(connectionDone)
        self.assertEqual(["edge-1", "edge-2", "edge-3"], self.ended)

    def test_refused(self) -> None:
        """An invalid node name is rejected with a message."""
        status, body = self.revoke("EDGE")
        self.assertEqual(400, status)
        self.assertIn("is not a node's name", body)
        self.assertIn("node is missing", self.refused("/v1/revocations", 400))
        self.assertEqual([], self.ended)


class MetaPagesTests(AdminCase):
    """The pages of the meta port, and of ``/debug``, are those of the server."""

    def get(self, target: str, method: str = "GET") -> bytes:
        """Make a request that must succeed."""
        answer = self.pages.send(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        self.assertEqual(b"200", head.split()[1], answer)
        return body

    def test_nodes(self) -> None:
        """Each node is listed, with everything known about it."""
        nodes = json.loads(self.get("/nodes"))["nodes"]
        states = {each["node"]: each["state"] for each in nodes}
        self.assertEqual({CONNECTED: "connected", LOST: "lost"}, states)
        lost = json.loads(self.get(f"/nodes/{LOST}"))
        self.assertEqual(["silent"], [each["reason"] for each in lost["disconnections"]])

    def test_others(self) -> None:
        """Metrics, health and debug pages are served, and the log level can be changed."""
        self.assertIn(b"yurttunnel_server_open_streams", self.get("/metrics"))
        self.assertEqual(b"ok\n", self.get("/healthz"))
        self.assertEqual(b"commands: ok\nready\n", self.get("/readyz"))
        self.assertIn(b"delayed_calls", self.get("/debug/reactor"))
        changed = self.get("/debug/log-level?level=warn&seconds=60", "POST")
        self.assertEqual(b"warn, in 60 s info again\n", changed)
        self.pages.reset_debug()
        self.assertEqual(b"info\n", self.get("/debug/log-level"))


TOKEN = re.compile(rb"[0-9a-f]{16}\.[0-9a-f]{32}")

WORDS = st.sampled_from(
    [
        *("v1", "tokens", "revoke", "revocations", "forwards", "remove", "process"),
        *("nodes", CONNECTED, LOST, "agents", "steering", "metrics", "healthz", "readyz"),
        *("debug", "log-level", "memory", "sessions", "stacks", "reactor"),
        *("..", "%2e%2e", "", "%00", "é", "join-token"),
    ]
)
NAMES = (
    *("id", "lifetime", "node", "forward", "listen", "replace", "level", "seconds", "frames"),
    *("q", "x", ""),
)
PARAMETERS = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.one_of(
            st.sampled_from(["1h", "0", "edge-1", "%00", "%ff", "*", "true", "9000"]),
            st.sampled_from(["9000=edge-1/127.0.0.1:80", "[::1]:9=edge-1/a:1", "9=*/..:0"]),
            st.sampled_from(["debug", "info", "warn", "1", "25", "86400", "1e9"]),
            st.text(max_size=8),
        ),
    ),
    max_size=3,
)
PAGES = (
    *("v1/tokens", "v1/tokens/revoke", "v1/revocations", "v1/forwards", "v1/forwards/remove"),
    *("v1/process", "", "nodes", f"nodes/{CONNECTED}", f"nodes/{LOST}", "nodes/x", "metrics"),
    *("agents", "steering", "debug", "debug/log-level", "debug/memory", "debug/sessions"),
    *("debug/stacks", "debug/reactor"),
)
HEADS = st.sampled_from(
    [b"Host: localhost\r\n", b"", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"]
)


class FuzzTests(AdminCase):
    """No input causes a defect, and only the page that creates a token reveals a secret."""

    def setUp(self) -> None:
        """Record the secrets."""
        super().setUp()
        self.secrets = secrets_in(self.directory.path)

    def test_each_page(self) -> None:
        """Each page can be read and changed, without and with any parameters."""
        odd = ("", "%ff", "1e9", "edge-1")
        for page in PAGES:
            for query in ("", *(f"?{name}={value}" for name in NAMES for value in odd)):
                for method in ("GET", "POST"):
                    line = f"{method} /{page}{query} HTTP/1.1\r\nHost: localhost\r\n\r\n"
                    answer = self.pages.send(line.encode())
                    self.assertNotEqual(b"", answer, line)
                    self.check(answer, (method, page) == ("POST", "v1/tokens"))

    @settings(max_examples=300, deadline=None)
    @given(
        st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "get", "CONNECT"]),
        # Half of them are existing pages.
        st.one_of(
            st.lists(WORDS, max_size=4),
            st.sampled_from([page.split("/") for page in PAGES]),
        ),
        PARAMETERS,
        HEADS,
        st.binary(max_size=40),
    )
    def test_requests(self, method, path, parameters, head, body) -> None:
        """A request gets a status, or the connection waits for more data or ends."""
        query = "&".join(f"{name}={value}" for name, value in parameters)
        target = f"/{'/'.join(path)}?{query}".replace(" ", "+")
        line = f"{method} {target} HTTP/1.1\r\n".encode("utf-8", "replace")
        answer = self.pages.send(line + head + b"\r\n" + body)
        self.check(answer, method == "POST" and path == ["v1", "tokens"])

    @settings(max_examples=300, deadline=None)
    @given(st.lists(st.binary(max_size=60), max_size=5))
    def test_bytes(self, pieces) -> None:
        """A malformed request gets a status or ends the connection, in any fragmentation."""
        self.check(self.pages.send(b"".join(pieces)), False)

    def check(self, answer: bytes, may_have_token: bool) -> None:
        """Check the response."""
        self.pages.reset_debug()
        self.assertEqual([], self.flushLoggedErrors())
        if answer:
            status = int(answer.split()[1])
            self.assertIn(status, (200, 400, 403, 404, 405, 409, 413))
        if not may_have_token:
            self.assertIsNone(TOKEN.search(answer))
        for secret in self.secrets:
            self.assertNotIn(secret, answer)
        for each in self.tokens.valid()[1:]:
            self.tokens.revoke(each.token_id)


class JoiningTests(SynchronousTestCase):
    """The command to paste on a node."""

    def command(self, *arguments: str) -> str:
        """Return it for a server with these flags."""
        settings = Options({}).settings_of("--standalone", "--state-dir=S", *arguments)
        return agent_command(settings, "a file")

    def test_address(self) -> None:
        """The command has the name in the certificate, otherwise the address of the listener."""
        for arguments, server in (
            (["--cert-dns-names=tunnel.example,other"], "tunnel.example:10262"),
            (["--cert-ips=203.0.113.10"], "203.0.113.10:10262"),
            (["--cert-ips=2001:db8::1"], "'[2001:db8::1]:10262'"),
            (["--bind-address=127.0.0.1", "--tunnel-agent-connect-port=99"], "127.0.0.1:99"),
        ):
            self.assertEqual(
                f"yurttunnel agent --standalone --tunnelserver-addr {server}"
                " --join-token-file 'a file'",
                self.command(*arguments),
            )

    def test_token(self) -> None:
        """A token itself is in an environment variable of the agent, before the command."""
        settings = Options({}).settings_of(
            "--standalone", "--state-dir=S", "--cert-ips=203.0.113.10"
        )
        self.assertEqual(
            "YURTTUNNEL_JOIN_TOKEN=id.secret yurttunnel agent --standalone"
            " --tunnelserver-addr 203.0.113.10:10262",
            command_with_token(settings, "id.secret"),
        )
        self.assertEqual(variable_of(JOIN_TOKEN), TOKEN_VARIABLE)

    def test_every_address(self) -> None:
        """For a wildcard address the command has one by which other machines reach this one."""
        server = re.search(r"--tunnelserver-addr (\S+):10262 ", self.command())[1]
        self.assertNotIn(server, ("0.0.0.0", ""))
