"""Where the API is, whom to trust there, and as whom to speak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from yurttunnel.kube.credentials import FileCredentials, ICredentialsSource


class BadKubeConfiguration(Exception):
    """The API cannot be asked like this; one line that names the file and the fix."""


@dataclass(frozen=True, slots=True)
class KubeConfiguration:
    """How to ask the API.

    ``host`` is a URL without a slash at its end; ``namespace`` that of the process, ``default``
    when nothing says it. ``authorities()`` gives certificates in PEM, read anew; empty when
    those of the system are to be trusted. ``tls_server_name`` is the name in the certificate of
    the API when it is another than the host's.
    """

    host: str
    namespace: str
    authorities: Callable[[], bytes]
    credentials: ICredentialsSource
    tls_server_name: str = ""


def without_credentials(url: str) -> KubeConfiguration:
    """Return how to ask the API at ``url``, by HTTP and as nobody, as clients of a hub do."""
    return KubeConfiguration(url, "default", lambda: b"", FileCredentials())


def checked_host(url: str, where: str) -> str:
    """Check the URL of an API and return it without a slash at its end.

    The scheme of what is returned is in small letters, by which others tell whether there is TLS.
    """
    if any(each in url for each in "@?#"):
        # Without the URL itself: it is told wherever the API does not answer, and so would these.
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
    return parts.geturl().rstrip("/")
