"""Endpoint strings of ``--connect-endpoint``: Unix sockets, TCP and TLS ports, and Twisted's own.

The syntax is that of ``twisted.internet.endpoints.serverFromString``. The three common kinds are
read here, with other defaults, since whoever connects reaches the nodes: a Unix socket has mode
0660, ``tcp:`` without an interface is the loopback address, and ``ssl:`` demands certificates of
its callers. Every other kind (``systemd:`` for one) is left to Twisted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Protocol

from OpenSSL.SSL import Error as OpenSSLError
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import (
    IListeningPort,
    IOpenSSLServerConnectionCreator,
    IReactorTCP,
    IReactorTime,
    IReactorUNIX,
)
from twisted.internet.protocol import ServerFactory
from twisted.internet.ssl import (
    Certificate,
    CertificateOptions,
    KeyPair,
    TLSVersion,
    trustRootFromCertificates,
)
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from yurttunnel.http.authority import BadAuthority, parse_port
from yurttunnel.server.listen import (
    BACKLOG,
    SOCKET_MODE,
    CannotListen,
    listen_tcp,
    listen_unix,
)
