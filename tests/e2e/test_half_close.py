"""A client that has finished sending still gets its answer."""

from __future__ import annotations

from benchmarks.ports import free_ports
from tests.e2e.clients import AnswerAfterEnd, HalfClosingTarget, RequestClient
from tests.e2e.support import EndToEndTestCase, TwistedTransports


class HalfCloseTests(EndToEndTestCase):
    """One direction of a stream ends separately."""

    async def test_nc_gets_its_answer_through_a_forward(self) -> None:
        """``printf x | nc -N`` prints the target's answer after the end of input."""
        target = self.listen(AnswerAfterEnd)
        tunnel = await self.start_tunnel(forwards=(target.port,))
        output, errors, status = await self.run_command(
            "nc", "-N", "-w", "10", "127.0.0.1", str(tunnel.forward_ports[0]), standard_input=b"x"
        )
        self.assertEqual((output, status), (b"got:x", 0), errors)

    async def test_nc_gets_its_answer_through_connect(self) -> None:
        """The same with ``nc -X connect`` and a CONNECT endpoint on TCP."""
        target = self.listen(AnswerAfterEnd)
        port = free_ports.take()
        endpoint = f"tcp:{port}:interface=127.0.0.1"
        tunnel = await self.start_tunnel(server_extra=("--connect-endpoint", endpoint))
        self.assertTrue(tunnel.server.running)
        output, errors, status = await self.run_command(
            "nc", "-N", "-w", "10", "-X", "connect", "-x", f"127.0.0.1:{port}",
            "127.0.0.1", str(target.port), standard_input=b"x",
        )  # fmt: skip
        self.assertEqual((output, status), (b"got:x", 0), errors)

    async def test_a_caller_that_ends_after_its_head_gets_the_targets_data(self) -> None:
        """``printf head | nc -N -U`` prints the 200 and the data of a target that sends first."""
        target = self.listen(HalfClosingTarget)
        tunnel = await self.start_tunnel()
        for authority, words in (
            (f"127.0.0.1:{target.port}", (b" 200 ", b"hello")),
            ("192.0.2.1:80", (b" 403 ", b"--allow-destination")),
        ):
            head = f"CONNECT {authority} HTTP/1.1\r\nHost: x\r\nX-Tunnel-Proxy-Host: edge-1\r\n\r\n"
            output, errors, status = await self.run_command(
                "nc", "-N", "-w", "10", "-U", tunnel.socket_path, standard_input=head.encode()
            )
            self.assertEqual(status, 0, errors)
            for word in words:
                self.assertIn(word, output)

    async def test_data_and_end_sent_with_the_connect_head_arrive(self) -> None:
        """Data and FIN directly after the head are not lost."""
        target = self.listen(AnswerAfterEnd)
        tunnel = await self.start_tunnel()
        question = RequestClient(finish=True)
        authority = f"127.0.0.1:{target.port}"
        answer = await self.connect(tunnel, authority, question, early=b"early")
        self.assertEqual(answer.status, 200, answer.body)
        await question.when_read_ended()
        self.assertEqual(question.answer, b"got:early")

    async def test_a_target_that_ends_first_still_gets_the_clients_data(self) -> None:
        """After the target's FIN, data of the client still reaches the target."""
        target = self.listen(HalfClosingTarget)
        tunnel = await self.start_tunnel(forwards=(target.port,))
        question = await self.dial(tunnel.forward_ports[0], RequestClient())
        await question.when_read_ended()
        self.assertEqual(question.answer, b"hello")
        question.transport.write(b"still here")
        question.transport.loseConnection()
        (peer,) = target.peers
        await peer.when_read_ended()
        self.assertEqual(peer.text, b"still here")


class TwistedHalfCloseTests(TwistedTransports, HalfCloseTests):
    """The same over Twisted's own transports."""
