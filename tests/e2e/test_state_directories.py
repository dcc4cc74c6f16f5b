"""Unusable state directories."""

from __future__ import annotations

import os
import shutil
from functools import partial

from twisted.trial.unittest import SkipTest

from tests.e2e.hostile import HostileTestCase
from tests.e2e.programs import Program
from tests.e2e.support import copy_state, which


class StateDirectoryTests(HostileTestCase):
    """An unusable state directory ends the start with one line."""

    async def refused(self, server: Program, *words: str) -> None:
        """Require a non-zero exit and a log with the reason, without a traceback."""
        server.start()
        status = await server.ended(20)
        self.assertGreater(status, 0, server.log)
        for word in words:
            self.assertIn(word, server.log)
        self.assertEqual(server.forbidden_log_lines(), [], server.log)

    async def test_a_file_in_its_place_is_named(self) -> None:
        """A regular file instead of the directory."""
        tunnel = self.make_tunnel()
        server = tunnel.another_server(state="file")
        with open(server.state, "w"):
            pass
        await self.refused(server, server.state)

    async def test_files_of_others_are_named(self) -> None:
        """A symbolic link, another user's directory or key, and a directory open to all."""
        if os.geteuid() != 0:
            raise SkipTest("only root can give files away")
        tunnel = self.make_tunnel()
        tunnel.server.start()
        await tunnel.server.ready()
        token = shutil.copy(tunnel.server.token_path, f"{self.directory}/token")
        await tunnel.server.stop()

        def programs(name: str) -> list[Program]:
            ours = {"state": name, "token_path": token}
            return [tunnel.another_server(state=name), tunnel.another_agent(**ours)]

        for program in programs("link"):
            if not os.path.lexists(program.state):
                os.symlink(tunnel.server.state, program.state)
            await self.refused(program, f"--state-dir: {program.state} is a symbolic link")
        for program in programs("foreign"):
            os.makedirs(program.state, 0o700, exist_ok=True)
            os.chown(program.state, 12345, 12345)
            await self.refused(program, f"--state-dir: {program.state} belongs to another user")
        copy_state(tunnel.server.state, f"{self.directory}/key")
        os.chown(f"{self.directory}/key/ca.key", 12345, 12345)
        await self.refused(programs("key")[0], "/key/ca.key belongs to another user")
        os.chmod(self.directory, 0o777)
        for program in programs("open"):
            await self.refused(
                program, f"everybody can replace the contents of {self.directory} (mode"
            )
        os.chmod(self.directory, 0o700)
        agent = programs("A5")[1]
        os.chown(token, 12345, 12345)
        await self.refused(agent, f"--join-token-file {token}: it belongs to another user")

    async def test_a_second_process_gets_the_pid_of_the_first(self) -> None:
        """For servers and agents; the first one continues, and after its end the next one
        starts.
        """
        tunnel = await self.start_tunnel()
        again = tunnel.another_agent()
        for first, second in ((tunnel.server, tunnel.successor()), (tunnel.agent, again)):
            await self.refused(second, "--state-dir: ", f"is in use by process {first.pid},")
        await self.still_serves(tunnel)
        tunnel.agent.kill()
        await tunnel.agent.ended(5)
        third = tunnel.another_agent()
        third.start()
        await third.ready()

    async def test_a_directory_that_cannot_be_read_is_named(self) -> None:
        """Missing permissions, also for root without capabilities."""
        prefix: tuple[str, ...] = ()
        if os.geteuid() == 0:
            drop = "--bounding-set=-dac_override,-dac_read_search"
            prefix = (which("setpriv"), drop)
        tunnel = self.make_tunnel()
        server = tunnel.another_server(state="closed", prefix=prefix)
        os.mkdir(server.state, 0o000)
        self.addCleanup(os.chmod, server.state, 0o700)
        await self.refused(server, server.state)

    async def test_a_broken_authority_is_named(self) -> None:
        """An invalid CA certificate is not replaced."""
        tunnel = self.make_tunnel()
        server = tunnel.another_server(state="broken")
        os.mkdir(server.state, 0o700)
        path = os.path.join(server.state, "ca.crt")
        with open(path, "w") as file:
            file.write("not a certificate\n")
        await self.refused(server, "ca.crt")
        with open(path) as file:
            self.assertEqual(file.read(), "not a certificate\n")

    async def test_an_agent_names_its_state_directory_and_token_file(self) -> None:
        """The agent does the same, and names a missing token file."""
        tunnel = self.make_tunnel()
        token = os.path.join(self.directory, "token")
        with open(token, "w", opener=partial(os.open, mode=0o600)) as file:
            file.write(f"{'a' * 16}.{'b' * 32}.sha256:{'c' * 64}\n")
        agent = tunnel.another_agent(state="file", token_path=token)
        with open(agent.state, "w"):
            pass
        await self.refused(agent, agent.state)
        missing = os.path.join(self.directory, "no-such-token")
        agent = tunnel.another_agent(state="A3", token_path=missing)
        await self.refused(agent, "join-token", missing)
