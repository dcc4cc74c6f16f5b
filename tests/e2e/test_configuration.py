"""A changing configuration file, while streams and requests continue."""

from __future__ import annotations

import html
import os
import signal

from twisted.internet import reactor
from twisted.internet.error import ConnectError

from tests.e2e.clients import Echo, EchoClient, Sink
from tests.e2e.configuration_file import TIMEOUT, ConfigurationFile
from tests.e2e.hub.programs import Hub
from tests.e2e.leaks import LeakTestCase
from tests.e2e.programs import READY_SECONDS, Program, Tunnel
from tests.e2e.proxy.programs import IdleProxy
from tests.e2e.support import EndToEndTestCase
from yurttunnel.agent.options import SERVER_CONNECTIONS

DRAIN, WINDOW = "drain-timeout", "resume-window"

SOON = 15.0
"""The timeout on a busy machine for changes that take about a second."""


class LiveConfigurationTests(LeakTestCase):
    """Changes apply without a restart, and no stream ends."""

    async def setUp(self) -> None:
        """Choose the file."""
        await super().setUp()
        self.file = ConfigurationFile(self.directory)
        self.path = self.file.path
        self.write = self.file.write

    async def until_readiness(self, program, words: str, there: bool = True) -> None:
        """Wait until /readyz contains these words, or does not; it is always ready."""

        async def is_shown() -> bool:
            status, body = await program.get("/readyz")
            self.assertEqual(200, status, body)
            return (words in body) is there

        await self.eventually(is_shown, f"/readyz and {words!r}", TIMEOUT, 0.1)

    async def test_allowed_destinations(self) -> None:
        """A target is allowed without a restart; changes that need one are reported."""
        self.write('allow-destination = ["no-default"]\n')
        tunnel = await self.start_tunnel(agent_extra=self.file.flags)
        echo, agent = self.listen(Echo), tunnel.agent
        target = f"127.0.0.1:{echo.port}"
        refused = await self.connect(tunnel, target, EchoClient(reactor))
        self.assertEqual(403, refused.status, refused.body)
        self.write(
            f'allow-destination = ["no-default", "{target}"]\nserver-connections = 7\n'
            'resume-window = "7s"\n'
        )
        await self.until_readiness(agent, f"needs a restart: --{SERVER_CONNECTIONS.name}")
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()
        # Existing streams continue after their destination is no longer allowed.
        self.write('allow-destination = ["no-default"]\n')
        await self.until_readiness(agent, "needs a restart", there=False)
        refused = await self.connect(tunnel, target, EchoClient(reactor))
        self.assertEqual(403, refused.status, refused.body)
        await client.round_trip()

    async def test_permissions_of_callers(self) -> None:
        """Permissions of callers apply to new connections."""
        echo, user = self.listen(Echo), os.geteuid()
        mine = f'allow-connect = ["user:{user}=edge-1/127.0.0.1:{echo.port}"]\n'
        self.write(mine)
        tunnel = await self.start_tunnel(server_extra=self.file.flags)
        client = await self.connected(tunnel, echo, EchoClient(reactor))

        async def status() -> int:
            answer = await self.connect(tunnel, f"127.0.0.1:{echo.port}", EchoClient(reactor))
            return answer.status

        for text, expected in (
            (mine.replace(f"user:{user}", f"user:{user + 1}"), 403),
            (mine, 200),
        ):
            self.write(text)

            async def is_applied(expected: int = expected) -> bool:
                return await status() == expected

            await self.eventually(is_applied, f"callers get {expected}", TIMEOUT, 0.1)
        await client.round_trip()

    async def test_every_program_follows_its_file(self) -> None:
        """Valid changes apply, invalid ones are reported, and unknown keys change nothing."""
        extra = self.file.flags
        tunnel = self.make_tunnel(server_extra=extra, agent_extra=extra)
        hub = Hub(reactor, self.directory, "https://127.0.0.1:1", extra=extra)
        proxy = IdleProxy(reactor, self.directory, extra)
        tunnel.others += [hub, proxy]
        for program, key, wrong in (
            (tunnel.server, "response-timeout", "response-timeuot"),
            (tunnel.agent, "resume-window", "resume-windows"),
            (hub, "min-request-timeout", "min-request-timout"),
            (proxy, "udp-timeout", "udp-timeouts"),
        ):
            self.write(f'{key} = "31s"\n')
            program.start()

            async def runs(program=program) -> bool:
                try:
                    return (await program.get("/healthz"))[0] == 200
                except ConnectError:
                    return False

            await self.eventually(runs, f"{key}: it serves its pages", READY_SECONDS)
            for text, message in (
                (f'{key} = "32s"\n', f"changed in {self.path}, and in use: --{key}\n"),
                (
                    f'{wrong} = "33s"\n',
                    f"{self.path}: {wrong}: unknown key: did you mean {key}?; the previous"
                    " configuration stays in use\n",
                ),
                (
                    f'{key} = "32s"\nlog-format = "json"\n',
                    f"changed in {self.path}, needs a restart: --log-format\n",
                ),
                (f'{key} = "32s"\nv = 4\n', f"changed in {self.path}, and in use: --v\n"),
            ):
                self.write(text)
                await self.eventually(
                    lambda program=program, message=message: message in program.log,
                    message,
                    TIMEOUT,
                )
                # The status page has what is not in use, as /readyz does.
                page = html.unescape((await program.get("/"))[1])
                problem = message.removeprefix("changed in ").rstrip()
                self.assertEqual("in use: --" not in message, problem in page, message)
            self.assertEqual((200, "debug\n"), await program.get("/debug/log-level"))


class LiveTimesTests(EndToEndTestCase):
    """Changed timeouts apply without a restart to what starts later."""

    async def setUp(self) -> None:
        """Choose the file."""
        await super().setUp()
        self.file = ConfigurationFile(self.directory)
        self.echo = self.listen(Echo)

    async def start(self, text: str, *, of_agent: bool = False) -> Tunnel:
        """Start a tunnel one of whose programs has a file."""
        self.file.write(text)
        side = "agent_extra" if of_agent else "server_extra"
        return await self.start_tunnel(drain=None, **{side: self.file.flags})

    async def talk(self, tunnel: Tunnel) -> EchoClient:
        """Open a stream that stays open."""
        client = await self.connected(tunnel, self.echo, EchoClient(reactor))
        await client.round_trip()
        return client

    async def outlived(self, tunnel: Tunnel) -> None:
        """Kill the agent, and require that a stream ends soon afterwards."""
        client = await self.talk(tunnel)
        tunnel.agent.kill()
        await self.within(SOON, client.when_ended(), "the stream ends")

    async def test_how_long_a_server_drains(self) -> None:
        """SIGTERM ends it within the new timeout, despite open streams."""
        tunnel = await self.start('drain-timeout = "60s"\n')
        client = await self.talk(tunnel)
        await self.file.use(self, tunnel.server, 'drain-timeout = "1s"\n', DRAIN)
        tunnel.server.signal(signal.SIGTERM)
        await tunnel.server.ended(SOON)
        await client.when_ended()

    async def test_how_long_an_agent_drains(self) -> None:
        """SIGTERM ends it within the new timeout, despite open streams."""
        tunnel = await self.start('drain-timeout = "60s"\n', of_agent=True)
        client = await self.talk(tunnel)
        await self.file.use(self, tunnel.agent, 'drain-timeout = "1s"\n', DRAIN)
        tunnel.agent.signal(signal.SIGTERM)
        await tunnel.agent.ended(SOON)
        await client.when_ended()

    async def test_how_long_streams_outlive_an_agent_that_was_reset(self) -> None:
        """Streams of new sessions end after the new grace period."""
        tunnel = await self.start('return-grace = "60s"\nresume-window = "60s"\n')
        await self.file.use(self, tunnel.server, 'return-grace = "1s"\n', "return-grace", WINDOW)
        await self.restart(tunnel.agent)
        await self.outlived(tunnel)

    async def test_how_long_streams_outlive_their_connection(self) -> None:
        """Streams of new sessions end after the server's new resume window."""
        tunnel = await self.start('resume-window = "60s"\n')
        await self.file.use(self, tunnel.server, 'resume-window = "1s"\n', WINDOW)
        await self.restart(tunnel.agent)
        await self.outlived(tunnel)

    async def test_resume_window_of_the_agent(self) -> None:
        """The shorter resume window of both ends applies."""
        tunnel = await self.start('resume-window = "60s"\n', of_agent=True)
        await self.file.use(self, tunnel.agent, 'resume-window = "1s"\n', WINDOW)
        await self.restart(tunnel.server)
        await tunnel.server.wait_for_agent(SOON)
        await self.outlived(tunnel)

    async def restart(self, program: Program) -> None:
        """Start a new session."""
        await program.stop()
        program.start()
        await program.ready()

    async def test_timeout_of_kubelets(self) -> None:
        """A request without a response gets 504 after the new timeout."""
        silent = self.listen(Sink)
        tunnel = await self.start('response-timeout = "60s"\n')
        await self.file.use(self, tunnel.server, 'response-timeout = "1s"\n', "response-timeout")
        output, errors, status = await self.run_command(
            *("curl", "--silent", "--show-error", "--noproxy", "*", "--max-time", f"{SOON:g}"),
            *("--header", f"Host: edge-1:{silent.port}", "--write-out", "\n%{http_code}"),
            f"http://127.0.0.1:{tunnel.server.insecure_port}/never",
        )
        self.assertEqual(status, 0, errors)
        self.assertTrue(output.endswith(b"\n504"), output)
