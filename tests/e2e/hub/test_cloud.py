"""The environment of the hub, without it: the permissions of a node, and failures of the API."""

from __future__ import annotations

from tests.e2e.hub.canned import Canned
from tests.e2e.hub.cloud import NODE, Cloud
from tests.e2e.hub.node_requests import PROGRAMS, create_objects
from tests.e2e.hub.support import HubTestCase

CURL_FAILED = 7
CURL_TIMED_OUT = 28


class CloudTests(HubTestCase):
    """A node that uses the API directly, with the certificate of its hub."""

    async def ask(self, cloud: Cloud, target: str, seconds: float = 5.0) -> tuple[str, int]:
        """Send a request to the first server; return curl's output and exit status."""
        certificate = f"{self.directory}/H/pki/yurthub-current.pem"
        out, _, status = await self.run_command(
            *("curl", "--silent", "--show-error", "--fail", "--max-time", str(seconds)),
            *("--cert", certificate, "--cacert", str(cloud.identities.ca_path)),
            f"https://127.0.0.1:{cloud.servers[0].port}{target}",
        )
        return out.decode(), status

    async def test_a_node_may_read_what_its_programs_request(self) -> None:
        """All requested objects exist, and no request is rejected."""
        cloud = await self.start_cloud()
        create_objects(cloud)
        cloud.join(f"{self.directory}/H")
        for program in PROGRAMS:
            for target in (*program.lists, *program.others):
                out, status = await self.ask(cloud, target)
                self.assertEqual(status, 0, target)
                self.assertTrue(out, target)
        self.assertEqual({name for name, _, _ in cloud.requests}, {f"system:node:{NODE}"})

    async def test_servers_refuse_are_silent_and_recover(self) -> None:
        """Refused connections, and connections without a response, are not other errors."""
        cloud = await self.start_cloud(servers=2)
        cloud.join(f"{self.directory}/H")
        self.assertEqual((await self.ask(cloud, "/version"))[1], 0)
        await cloud.refuse_connections()
        self.assertEqual((await self.ask(cloud, "/version"))[1], CURL_FAILED)
        cloud.restore()
        self.assertEqual((await self.ask(cloud, "/version"))[1], 0)
        cloud.drop_packets()
        self.assertEqual((await self.ask(cloud, "/version", 1.0))[1], CURL_TIMED_OUT)
        cloud.restore()
        self.assertEqual((await self.ask(cloud, "/version"))[1], 0)

    async def test_an_answer_can_be_written_by_the_test(self) -> None:
        """It replaces the API's response."""
        cloud = await self.start_cloud()
        cloud.join(f"{self.directory}/H")
        cloud.answers["/version"] = Canned(b"{}")
        self.assertEqual(await self.ask(cloud, "/version"), ("{}", 0))
