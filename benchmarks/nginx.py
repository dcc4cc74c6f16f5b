"""The peer of the tunnel: two nginx, the best that C can do at "TCP in, TLS across, TCP out".

The first accepts TCP connections and connects to the second by TLS with a client certificate. The
second requires it, and connects to the backend by TCP. Each is one master with one worker, because
server and agent are one process each, so both contestants have two working processes. The buffers
are 64 KiB: the default of 16 KiB costs nginx a fifth of its bulk throughput. Everything else is the
default, so a new connection resumes the TLS session of an earlier one.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.certificates import Authority
from benchmarks.ports import free_ports
from benchmarks.processes import BenchmarkFailed, Program, children

_CONFIGURATION = """\
{module}
daemon off;
worker_processes 1;
pid {name}.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
stream {{
    proxy_buffer_size 64k;
    server {{
{server}
    }}
}}
"""

_FIRST = """\
        listen 127.0.0.1:{port};
        proxy_pass 127.0.0.1:{to};
        proxy_ssl on;
        proxy_ssl_protocols TLSv1.3;
        proxy_ssl_certificate {own.certificate};
        proxy_ssl_certificate_key {own.key};
        proxy_ssl_trusted_certificate {authority};
        proxy_ssl_verify on;
        proxy_ssl_name second;"""

_SECOND = """\
        listen 127.0.0.1:{port} ssl;
        ssl_protocols TLSv1.3;
        ssl_certificate {own.certificate};
        ssl_certificate_key {own.key};
        ssl_client_certificate {authority};
        ssl_verify_client on;
        proxy_pass 127.0.0.1:{to};"""


class Nginx:
    """The installed nginx; raises :class:`BenchmarkFailed` if there is none."""

    def __init__(self) -> None:
        path = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
        if path is None:
            raise BenchmarkFailed(
                "nginx is not installed (Debian: apt-get install nginx libnginx-mod-stream)"
            )
        self.path = path
        printed = subprocess.run([path, "-V"], capture_output=True, text=True, check=True).stderr
        self.versions = [
            line for line in printed.splitlines() if "version" in line or "built" in line
        ]
        self.version_output = printed

    def start(
        self, stack: ExitStack, directory: Path, name: str, text: str, ports: Sequence[int]
    ) -> Program:
        """Run one master with one worker, with a configuration, until ``stack`` ends.

        Returns once it listens on the ``ports``.
        """
        configuration = directory / f"{name}.conf"
        configuration.write_text(text)
        command = [self.path, "-p", str(directory), "-c", str(configuration), "-e", "stderr"]
        program = stack.enter_context(Program(command, directory / f"nginx-{name}.log"))
        program.wait_until(
            lambda: all(_listens(port) for port in ports) and bool(children(program.pid)),
            "it listened",
        )
        return program


def stream_module(printed: str) -> str:
    """Return the directive that loads the stream module, from the output of ``nginx -V``.

    It is empty if the module is compiled in; raises :class:`BenchmarkFailed` if there is none.
    """
    if "--with-stream" in printed.split():
        return ""
    found = re.search(r"--modules-path=(\S+)", printed)
    directory = Path(found[1] if found else "/usr/lib/nginx/modules")
    module = directory / "ngx_stream_module.so"
    if not module.exists():
        raise BenchmarkFailed(
            f"nginx has no stream module in {directory} (Debian: libnginx-mod-stream)"
        )
    return f"load_module {module};"


class Pair:
    """Both nginx in front of the backend on ``backend_port``, running until ``stack`` ends."""

    def __init__(self, stack: ExitStack, directory: Path, nginx: Nginx, backend_port: int) -> None:
        authority = Authority(directory)
        self.port, between = free_ports.take(), free_ports.take()
        second = self._start(
            stack, directory, nginx, "second", authority, _SECOND, between, backend_port
        )
        first = self._start(stack, directory, nginx, "first", authority, _FIRST, self.port, between)
        self.pids = {
            name: worker for name, program in (("first", first), ("second", second))
            for worker in children(program.pid)
        }  # fmt: skip

    @staticmethod
    def _start(
        stack: ExitStack, directory: Path, nginx: Nginx, name: str, authority: Authority,
        server: str, port: int, to: int,
    ) -> Program:  # fmt: skip
        text = server.format(
            port=port, to=to, own=authority.issue(name), authority=authority.certificate
        )
        configuration = _CONFIGURATION.format(
            module=stream_module(nginx.version_output), name=name, server=text
        )
        return nginx.start(stack, directory, name, configuration, [port])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
