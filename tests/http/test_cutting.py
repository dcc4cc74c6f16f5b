"""However the bytes are split on their way, the same data arrives.

A client, a server that forwards, and an origin that serves are connected in memory; between them
the bytes are split at random.
"""

from __future__ import annotations

import random
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import succeed
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import MemoryConnection
from tests.http.relaying import GivenForwarding
from tests.http.support import Server, request, responses, settle
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.pool import ConnectionPool, PoolSettings
from yurttunnel.http.relay import ForwardedRequest, Relay
from yurttunnel.http.request_body import read_body


def answer(exchange):
    """Echo the body of a request, framed as its target says.

    If the length were known from the head, the response would be complete before the request.
    """
    target = exchange.head.target
    fields = [(b"X-Target", target)]
    if target == b"/interim":
        exchange.send_informational(103, [(b"Link", b"x")])
    if target in (b"/interim", b"/chunked") and exchange.head.method != b"HEAD":
        exchange.respond_from(200, fields, exchange)
        return
    status = 204 if target == b"/none" else 200
    read_body(exchange, 1000).addCallback(partial(exchange.respond, status, fields))


class World:
    """The three programs; ``chance`` decides where bytes are split."""

    def __init__(self, chance):
        self.chance = chance
        self.origin = Server()
        self.origin.handler.answer = answer
        self.front = Server()
        self.clock = self.front.clock
        self.relay = Relay(self.clock)
        self.pool = ConnectionPool(self.clock, self.connect, PoolSettings(max_per_key=1))
        self.front.handler.answer = self.forward
        self.pipes = []
        self.client = self.front.connect()

    def connect(self, key, caller):
        """Connect to the origin."""
        connection = ClientConnection(self.clock)
        near = MemoryConnection(self.clock).open(connection)
        far = self.origin.connect()
        self.pipes += [Pipe(near, far, self.chance), Pipe(far, near, self.chance)]
        return succeed(connection)

    def forward(self, exchange):
        """Forward a request."""
        head = exchange.head
        acquire = partial(self.pool.acquire, "origin")
        GivenForwarding(
            self.relay,
            exchange,
            acquire,
            ForwardedRequest(head.method, head.target, head.fields),
            lambda failure: (502, ""),
        ).begin()

    def run(self, data):
        """Send ``data`` from the client; return what it receives."""
        while data:
            size = self.chance.randint(1, self.chance.choice([3, 50, 1000]))
            self.client.receive(data[:size])
            data = data[size:]
            self.settle()
        return self.client.sent

    def settle(self):
        """Transfer all data."""
        moved = True
        while moved:
            settle(self.clock, self.client)
            moved = sum(pipe.move() for pipe in self.pipes) > 0

    def close(self):
        """End everything."""
        self.pool.close()
        self.front.factory.close()
        self.origin.factory.close()


class Pipe:
    """Transfers the data of one connection to another."""

    def __init__(self, source, target, chance):
        self.source, self.target, self.chance = source, target, chance
        self.moved = 0
        self.ended = False

    def move(self):
        """Transfer a piece or an end; return whether there was any."""
        settle(self.source.reactor, self.source)
        settle(self.target.reactor, self.target)
        data = self.source.sent[self.moved :]
        if data:
            size = self.chance.randint(1, self.chance.choice([3, 50, 1000]))
            self.moved += len(data[:size])
            self.target.receive(data[:size])
            return True
        if (self.source.write_ended or self.source.closed_with) and not self.ended:
            self.ended = True
            self.target.receive_end()
            return True
        return False


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from([b"/length", b"/chunked", b"/none", b"/interim"]),
        st.sampled_from([b"POST", b"GET", b"HEAD", b"PUT"]),
        st.one_of(st.none(), st.binary(max_size=200)),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


def encode(target, method, body, chunked, chance):
    """Build the bytes of a request."""
    if body is None:
        return request(target, method=method)
    if not chunked:
        return request(target, b"Content-Length: %d" % len(body), method=method, body=body)
    chunks = b""
    rest = body
    while rest:
        size = chance.randint(1, 60)
        chunks += b"%x\r\n%b\r\n" % (len(rest[:size]), rest[:size])
        rest = rest[size:]
    return request(
        target,
        b"Transfer-Encoding: chunked",
        method=method,
        body=chunks + b"0\r\nX-T: t\r\n\r\n",
    )


class CuttingTests(SynchronousTestCase):
    """Any splitting of the bytes results in the same exchanges."""

    @settings(max_examples=150, deadline=None)
    @given(REQUESTS, st.integers(0, 2**32))
    def test_requests_and_responses(self, asked, seed):
        """Each request is answered in order with its own body, and nothing is left over."""
        chance = random.Random(seed)
        world = World(chance)
        try:
            sent = world.run(b"".join([encode(*each, chance) for each in asked]))
            found = responses(sent, *[method.decode() for _, method, _, _ in asked])
        finally:
            world.close()
        finals = [answer for answer in found if answer[0] >= 200]
        self.assertEqual(len(asked), len(finals))
        for (target, method, body, _), (status, fields, echoed, _) in zip(
            asked, finals, strict=True
        ):
            expected = body or b""
            if method == b"HEAD" or target == b"/none":
                expected = b""
            self.assertEqual(204 if target == b"/none" else 200, status)
            self.assertEqual((target, expected), (fields[b"x-target"], echoed))
        self.assertEqual(1, world.pool.statistics.connects)
