"""The peer of the service proxy: nginx ``stream``, plain TCP (or UDP) in and out."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from benchmarks.nginx import Nginx, stream_module
from benchmarks.ports import free_ports
from benchmarks.processes import children

_CONFIGURATION = """\
{module}
daemon off;
worker_processes 1;
pid peer.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
stream {{
    proxy_buffer_size 64k;
    server {{
        listen {port};
        proxy_pass {address}:{backend};
    }}
    server {{
        listen {port} udp;
        proxy_pass {address}:{echo};
    }}
}}
"""


class Peer:
    """The nginx, until ``stack`` ends: one master with one worker; TCP and UDP on ``port``."""

    def __init__(
        self,
        stack: ExitStack,
        directory: Path,
        nginx: Nginx,
        address: str,
        backend: int,
        echo: int,
    ) -> None:
        self.port = free_ports.take()
        text = _CONFIGURATION.format(
            module=stream_module(nginx.version_output), address=address, port=self.port,
            backend=backend, echo=echo,
        )  # fmt: skip
        program = nginx.start(stack, directory, "peer", text, [self.port])
        self.pids = children(program.pid)
