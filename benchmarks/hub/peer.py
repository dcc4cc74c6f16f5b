"""The peer of the hub: one nginx as an HTTP proxy, with TLS to the API server.

It keeps connections to the API server alive, as the hub does. Responses other than watches are
buffered, which is faster for large lists; events of watches are forwarded as they arrive.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from benchmarks.certificates import Authority, KeyPair
from benchmarks.nginx import Nginx
from benchmarks.ports import free_ports
from benchmarks.processes import children

_CONFIGURATION = """\
daemon off;
worker_processes 1;
pid proxy.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path temporary;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    keepalive_requests 1000000;
    tcp_nodelay on;
    upstream api {{
        server 127.0.0.1:{to};
        keepalive 400;
        keepalive_requests 1000000;
    }}
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_set_header Host $http_host;
    proxy_ssl_protocols TLSv1.3;
    proxy_ssl_certificate {own.certificate};
    proxy_ssl_certificate_key {own.key};
    proxy_ssl_trusted_certificate {authority};
    proxy_ssl_verify on;
    proxy_ssl_name {name};
    proxy_read_timeout 1h;
    proxy_buffer_size 16k;
    proxy_buffers 64 16k;
    proxy_busy_buffers_size 128k;
    proxy_max_temp_file_size 0;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass https://api; }}
    }}
    server {{
        listen 127.0.0.1:{watch_port};
        location / {{
            proxy_pass https://api;
            proxy_buffering off;
        }}
    }}
}}
"""


class Proxy:
    """The nginx, until ``stack`` ends; ``watch_port`` is for watches, ``port`` for the rest."""

    def __init__(
        self,
        stack: ExitStack,
        directory: Path,
        nginx: Nginx,
        authority: Authority,
        own: KeyPair,
        api: tuple[str, int],
    ) -> None:
        name, to = api
        self.port, self.watch_port = free_ports.take(), free_ports.take()
        text = _CONFIGURATION.format(
            to=to, port=self.port, watch_port=self.watch_port, name=name,
            own=own, authority=authority.certificate,
        )  # fmt: skip
        program = nginx.start(stack, directory, "proxy", text, [self.port, self.watch_port])
        self.pids = children(program.pid)
