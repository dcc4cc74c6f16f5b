"""Many agents in one process, each with its own certificate and session: ``--count`` of them.

They are the agent's own parts, once for each node. What the process takes is not what as many
agents take; it is for looking at the server.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from twisted.application.service import MultiService
from twisted.internet import reactor  # This is a program, which runs it.

from benchmarks.ports import free_ports
from yurttunnel.agent.command import build
from yurttunnel.agent.options import Options
from yurttunnel.tunnel.direct.reactor import with_transports

APART = 0.02
"""Seconds between the starts of two agents, so that their handshakes do not come all at once."""


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--server", required=True, metavar="HOST:PORT")
    parser.add_argument("--join-token-file", type=Path, required=True)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--transport", default="direct")
    return parser.parse_args()


def main() -> None:
    """Run until a signal comes."""
    arguments = parse()
    agents = MultiService()
    agents.startService()
    for number, meta_port in enumerate(free_ports(arguments.count)):
        options = Options({})
        options.parseOptions(
            [
                "--standalone",
                "--state-dir", str(arguments.state_dir / f"many-{number}"),
                "--node-name", f"many-{number}",
                "--node-ip", f"127.1.{number // 256}.{number % 256}",
                "--meta-host", "127.0.0.1",
                "--meta-port", str(meta_port),
                "--tunnelserver-addr", arguments.server,
                "--join-token-file", str(arguments.join_token_file),
                "--transport", arguments.transport,
                "--drain-timeout", "1",
            ]
        )  # fmt: skip
        agent = build(with_transports(reactor, arguments.transport), options.settings)
        reactor.callLater(APART * number, agent.setServiceParent, agents)
    reactor.addSystemEventTrigger("before", "shutdown", agents.stopService)
    reactor.run()


if __name__ == "__main__":
    main()
