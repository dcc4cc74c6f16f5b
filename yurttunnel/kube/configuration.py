"""The address of the API, the authorities to trust, and the client's credentials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from yurttunnel.kube.credentials import FileCredentials, ICredentialsSource


class BadKubeConfiguration(Exception):
    """An unusable configuration of the API; one line names the file and the fix."""


@dataclass(frozen=True, slots=True)
class KubeConfiguration:
    """The configuration of an API client.

    ``host`` is a URL without a final slash. ``namespace`` is that of the process, ``default`` if
    none is configured. ``authorities()`` returns the current certificates in PEM form; empty for
    the authorities of the system. ``tls_server_name`` is the name in the API's certificate if it
    differs from the host.
    """

    host: str
    namespace: str
    authorities: Callable[[], bytes]
    credentials: ICredentialsSource
    tls_server_name: str = ""


def without_credentials(url: str) -> KubeConfiguration:
    """Return a configuration for the API at ``url`` over HTTP without credentials, as for a hub."""
    return KubeConfiguration(url, "default", lambda: b"", FileCredentials())


def checked_host(url: str, where: str) -> str:
    """Validate the URL of an API and return it without a final slash.

    The scheme of the result is lower case, since callers use it to detect TLS.
    """
    if any(each in url for each in "@?#"):
        # The URL is left out: errors about an unreachable API contain it, and would leak these
        # parts.
        raise BadKubeConfiguration(
            f"{where}: the URL of an API has no user, password or query: write https://HOST:PORT,"
            " and a token or a certificate where the user is"
        )
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("https", "http") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise BadKubeConfiguration(f"{where}: {url!r} is not the URL of an API: https://HOST:PORT")
    if "%" in parts.netloc:
        raise BadKubeConfiguration(
            f"{where}: {url!r} has a zone, with which no API is reached: write another address, or"
            " a name"
        )
    return parts.geturl().rstrip("/")
