"""A large body through the ports for requests to kubelets."""

from __future__ import annotations

from twisted.internet import reactor

from tests.e2e.http_clients import ChunkedUpload
from tests.e2e.interception import Frontend, InterceptionTestCase
from tests.e2e.kubelets import Request
from tests.e2e.programs import MEBIBYTE, max_growth

CHUNKED = [(b"Transfer-Encoding", b"chunked")]

GIGABYTE = 1_000_000_000


class UploadTests(InterceptionTestCase):
    """A body of any size is relayed without being buffered as a whole."""

    async def test_a_chunked_upload_of_a_gigabyte_takes_constant_memory(self) -> None:
        """The SHA-256 is the same at both ends, and neither program's memory grows with the
        body.
        """

        async def take(request: Request) -> None:
            await request.ended()
            request.answer(200, request.digest.encode())

        tunnel = await self.start_tunnel()
        door = Frontend(self, tunnel, self.secure_kubelet(tunnel, take))
        before = self.descriptors_of(tunnel)
        programs = (tunnel.server, tunnel.agent)
        resident = [program.resident() for program in programs]
        client = await door.client()
        peak = list(resident)
        began = reactor.seconds()
        client.send_head("/upload", "POST", CHUNKED)
        upload = ChunkedUpload(client.transport, GIGABYTE)
        answer = client.expect(b"POST")
        while not answer.complete and answer.error is None:
            peak = [max(m, p.resident()) for m, p in zip(peak, programs, strict=True)]
            self.assertLess(reactor.seconds() - began, 40, f"{upload.payload.sent} bytes so far")
            await self.pause(0.1)
        got = await answer.whole()
        took = reactor.seconds() - began
        self.assertEqual((got.status, door.kubelet.requests[0].size), (200, GIGABYTE))
        self.assertEqual(got.body.decode(), upload.payload.digest)
        rate = GIGABYTE / took / MEBIBYTE
        print(f"\na gigabyte in {took:.1f} s, {rate:.0f} MiB/s")
        for program, first, last in zip(programs, resident, peak, strict=True):
            growth, bound = last - first, max_growth(1)
            name = program.arguments[0]
            print(f"{name}: grown by {growth / MEBIBYTE:.1f} MiB of {bound / MEBIBYTE:.1f}")
            self.assertLess(growth, bound, name)
        client.drop()
        await self.assert_no_leftovers(tunnel, [door], before)
