"""Measure the cost of a session compared with bare frames, in memory.

Run it with ``python benchmarks/wire.py``. For each size of write it transfers the same bytes twice:
through two :class:`~yurttunnel.wire.session.Session` with one stream, and as bare frames that are
packed, joined and unpacked again. The ratio is the cost of streams, credit, scheduling and the log
for resumption, without TLS and sockets. Trust the ratio, not the rates.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from yurttunnel.wire import frames
from yurttunnel.wire.frames import OpenRequest
from yurttunnel.wire.hello import Hello, Limits
from yurttunnel.wire.session import Session
from yurttunnel.wire.stream import Stream
from yurttunnel.wire.stream_table import Side

SIZES = (100, 4 * 1024, 64 * 1024)
BATCH = 64 * 1024
"""The bytes that are written before they are transferred, as in one iteration of a reactor."""


class Ignoring:
    """The owner of a session and the user of its streams; counts received bytes."""

    def __init__(self) -> None:
        self.received = 0
        self.requested: list[Stream] = []

    def stream_requested(self, stream: Stream) -> None:
        """Store the stream."""
        self.requested.append(stream)

    def deliver(self, piece: bytes) -> None:
        """Count the bytes."""
        self.received += len(piece)

    def __getattr__(self, name: str) -> Any:
        """Ignore every other event."""
        return lambda *details: None


def through_sessions(size: int, total: int) -> float:
    """Transfer ``total`` bytes in writes of ``size`` through two sessions; return the seconds."""
    server_user, agent_user = Ignoring(), Ignoring()
    limits = Limits()
    agent_hello, server_hello = (Hello(limits, bytes(16), bytes([side]) * 16) for side in (1, 2))
    server = Session(Side.SERVER, server_hello, agent_hello, server_user, 0.0)
    agent = Session(Side.AGENT, agent_hello, server_hello, agent_user, 0.0)
    for session in (server, agent):
        session.attach(0, 0.0)
    near = server.open(OpenRequest("target", 80, 60_000, "benchmark"), server_user, 0.0)
    pass_on(server, agent)
    (far,) = agent_user.requested
    far.events, far.deliver = agent_user, agent_user.deliver
    agent.accept(far)
    agent.resume(far, 0.0)
    pass_on(server, agent)
    payload = bytes(size)
    began = time.perf_counter()
    while agent_user.received < total:
        while near.pending_size < BATCH:
            server.send(near, payload)
        pass_on(server, agent)
    return time.perf_counter() - began


def pass_on(server: Session, agent: Session) -> None:
    """Transfer the pending bytes of each side to the other."""
    for sender, receiver in ((server, agent), (agent, server)):
        while chunk := sender.data_to_send(BATCH):
            receiver.receive(chunk, 0.0)


def as_bare_frames(size: int, total: int) -> float:
    """Pack, join and unpack ``total`` bytes in frames of ``size``; return the seconds."""
    payload = bytes(size)
    header, unpack = frames.HEADER, frames.HEADER.unpack_from
    began = time.perf_counter()
    received = 0
    while received < total:
        parts: list[bytes] = []
        for _ in range(max(1, BATCH // size)):
            parts += (header.pack(size, frames.DATA, 1), payload)
        joined = b"".join(parts)
        position = 0
        while position < len(joined):
            length, _, _ = unpack(joined, position)
            position += header.size + length
            received += len(joined[position - length : position])
    return time.perf_counter() - began


def main() -> None:
    """Measure, and print a line for each size of write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=64, help="bytes moved in each run")
    parser.add_argument("--runs", type=int, default=5, help="runs, of which the median counts")
    arguments = parser.parse_args()
    print(f"{'write':>8} {'sessions':>12} {'bare frames':>12} {'ratio':>6} {'spread':>7}")
    for size in SIZES:
        total = arguments.megabytes * 2**20 // (16 if size < 1024 else 1)
        ratios, rates, bare_rates = [], [], []
        for _ in range(arguments.runs):
            bare, real = as_bare_frames(size, total), through_sessions(size, total)
            ratios.append(bare / real)
            rates.append(total / real / 2**20)
            bare_rates.append(total / bare / 2**20)
        spread = (max(ratios) - min(ratios)) / statistics.median(ratios)
        rate, bare_rate = statistics.median(rates), statistics.median(bare_rates)
        ratio = statistics.median(ratios)
        print(
            f"{size:>6} B {rate:>6.0f} MiB/s {bare_rate:>6.0f} MiB/s {ratio:>6.2f} {spread:>6.0%}"
        )


if __name__ == "__main__":
    main()
