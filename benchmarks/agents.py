"""Run ``--count`` agents in one process, to measure the server; see :mod:`benchmarks.crowd`.

First all agents get certificates, then ``--connect`` of them maintain sessions. The meta port
serves ``/readyz``, which is 200 once that is done, ``/figures`` (JSON), and
``/connect?count=N&rate=R`` (POST), which makes N agents maintain sessions, adding R each second.
This process does not use as many resources as that number of real agents.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import sys
from pathlib import Path
from typing import Any, cast

from twisted.internet import reactor  # This is a program, which runs it.
from twisted.internet.defer import Deferred
from twisted.internet.protocol import ServerFactory
from twisted.internet.task import deferLater
from twisted.logger import (
    FilteringLogObserver,
    LogLevel,
    LogLevelFilterPredicate,
    globalLogBeginner,
    textFileLogObserver,
)
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import Request, Site

from benchmarks.crowd import Crowd
from yurttunnel.tunnel.direct.reactor import with_transports
from yurttunnel.tunnel.reactor import installed_reactor

RATE = 50.0
"""The default number of agents that connect each second."""

ENDING_SECONDS = 0.5
"""The time for the last frames of the sessions to be sent."""

DESCRIPTORS = 64
"""The number of file descriptors in addition to one connection for each agent."""


class _Page(Resource):
    """The pages of the meta port; see the module docstring."""

    isLeaf = True

    def __init__(self, crowd: Crowd, desired: int) -> None:
        super().__init__()
        self._agents = crowd
        self._desired = desired

    def render_GET(self, request: Request) -> bytes:
        """Return the state of the agents."""
        stats = self._agents.stats()
        connected = len(stats.connected_since)
        if request.path == b"/readyz":
            ready = self._agents.has_certificates and connected >= self._desired
            request.setResponseCode(200 if ready else 503)
            return f"{connected} are connected\n".encode()
        if request.path == b"/figures":
            return json.dumps(dataclasses.asdict(stats)).encode()
        request.setResponseCode(404)
        return b"no such page\n"

    def render_POST(self, request: Request) -> bytes:
        """Connect more agents."""
        if request.path != b"/connect":
            request.setResponseCode(404)
            return b"no such page\n"
        arguments: Any = request.args
        self._desired = int(arguments[b"count"][0])
        self._agents.connect(self._desired, float(arguments[b"rate"][0]))
        return b"ok\n"


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--enrolling", type=int, required=True)
    parser.add_argument("--connect", type=int, default=0)
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--server", required=True, metavar="HOST:PORT")
    parser.add_argument("--server-state", type=Path, required=True)
    parser.add_argument("--meta-port", type=int, required=True)
    parser.add_argument("--transport", default="direct")
    return parser.parse_args()


def _log_warnings() -> None:
    """Log warnings only: connections of thousands of agents are expected."""
    worth_it = LogLevelFilterPredicate(LogLevel.warn)
    observer = FilteringLogObserver(textFileLogObserver(sys.stderr), [worth_it])
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)


def _stop(crowd: Crowd) -> Deferred[None]:
    crowd.stop()
    return deferLater(reactor, ENDING_SECONDS)


def main() -> None:
    """Run until a signal is received."""
    arguments = parse()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < arguments.count + DESCRIPTORS:
        sys.exit(f"ulimit -n is {most}, too few for {arguments.count} connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _log_warnings()
    host, _, port = arguments.server.rpartition(":")
    crowd = Crowd(
        with_transports(installed_reactor(), arguments.transport),
        host,
        int(port),
        arguments.server_state,
        arguments.count,
        arguments.enrolling,
    )
    site = cast("ServerFactory[Any]", Site(_Page(crowd, arguments.connect)))
    reactor.listenTCP(arguments.meta_port, site, interface="127.0.0.1")
    failures: list[Failure] = []

    def begin(result: None) -> None:
        crowd.connect(arguments.connect, arguments.rate)

    def failed(reason: Failure) -> None:
        failures.append(reason)
        reactor.stop()

    reactor.callWhenRunning(
        lambda: Deferred.fromCoroutine(crowd.get_certificates()).addCallbacks(begin, failed)
    )
    reactor.addSystemEventTrigger("before", "shutdown", _stop, crowd)
    reactor.run()
    if failures:
        sys.exit(f"not all agents got a certificate: {failures[0].value}")


if __name__ == "__main__":
    main()
