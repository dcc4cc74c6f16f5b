"""Blocking callers that send CONNECT to an ``ssl:`` endpoint, as kube-apiserver does."""

from __future__ import annotations

import hashlib
import socket
import ssl
import time

RECEIVE_BUFFER = 64 * 1024
"""The kernel's receive buffer in bytes."""


def tls_download(state: str, port: int, target: int, pause: float = 0.0) -> str:
    """Download everything that a target port on edge-1 sends; return its SHA-256.

    ``state`` is the state directory of the server that has the endpoint on ``port``. After the
    response to CONNECT nothing is read for ``pause`` seconds. Raises ``OSError`` if the connection
    breaks, or ends without TLS close_notify.
    """
    context = ssl.create_default_context(cafile=f"{state}/ca.crt")
    context.load_cert_chain(f"{state}/client.crt", f"{state}/client.key")
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    plain.settimeout(20)
    plain.connect(("127.0.0.1", port))
    wrapped = context.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)
    with wrapped as connection:
        connection.sendall(f"CONNECT 127.0.0.1:{target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        # The 200 is in a separate record.
        answer = connection.recv(4096)
        if not answer.startswith(b"HTTP/1.1 200 ") or not answer.endswith(b"\r\n\r\n"):
            raise AssertionError(f"the answer was {answer!r}")
        time.sleep(pause)
        digest = hashlib.sha256()
        while data := connection.recv(65536):
            digest.update(data)
    return digest.hexdigest()
