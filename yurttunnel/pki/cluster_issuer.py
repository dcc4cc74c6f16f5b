"""An issuer that requests certificates from a signer of the cluster.

It creates a ``CertificateSigningRequest`` (see "Certificates and Certificate Signing Requests" of
the Kubernetes documentation) and polls it by name, which needs only the verbs create and get, not
watch.
"""

from __future__ import annotations

import base64
import binascii
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from yurttunnel.cluster.fields import mapping, objects, text
from yurttunnel.kube.errors import ApiError, ApiUnreachable, NotFound
from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.kube.resources import CERTIFICATE_SIGNING_REQUESTS, Object
from yurttunnel.pki.credentials import BadCredentials, certificates_from_pem
from yurttunnel.pki.issuer import Chain, Denied, NotIssued

MAX_WAIT = 15 * 60.0
"""Seconds for the approval and the signature of one request."""
_MIN_PAUSE = 0.25
_MAX_PAUSE = 10.0
"""Seconds between two reads of a request."""
_PAUSE_FACTOR = 1.25
"""The factor of the pauses: a certificate is found after at most a quarter more than its time to
issue."""
_MAX_CERTIFICATE = 256 * 1024
"""Bytes of a certificate and its chain, in base64."""
_MAX_MESSAGE = 500


class ClusterIssuer:
    """A signer of the cluster, with requests made as the user of ``client``.

    ``others`` are clients of the cluster's other API servers: if one is unreachable, the request is
    read from the next. ``usages`` are those of the certificates, as the API names them. An
    abandoned request is not deleted; the cluster removes it in time.
    """

    final_errors: tuple[type[Exception], ...] = ()

    def __init__(
        self,
        clock: IReactorTime,
        client: IKubeClient,
        signer: str,
        usages: Sequence[str],
        others: Sequence[IKubeClient] = (),
    ) -> None:
        self._clock = clock
        self._clients = (client, *others)
        self._signer = signer
        self._usages = list(usages)

    async def issue(self, request: bytes, on_waiting: Callable[[str], object]) -> Chain:
        """Return the certificate; raises :class:`NotIssued`, also after :data:`MAX_WAIT`."""
        try:
            created = await self._clients[0].create(
                CERTIFICATE_SIGNING_REQUESTS, self._object(request)
            )
        except (ApiError, ApiUnreachable) as error:
            raise NotIssued(str(error)) from error
        name = _name(created)
        poller = _RequestPoller(self._clock, self._clients, self._signer, name, on_waiting)
        try:
            return certificates_from_pem(await poller.certificate(created))
        except BadCredentials as error:
            raise NotIssued(f"{name}: the signer's response cannot be used: {error}") from None

    def _object(self, request: bytes) -> Object:
        return {
            "metadata": {"generateName": "csr-"},
            "spec": {
                "request": base64.b64encode(request).decode("ascii"),
                "signerName": self._signer,
                "usages": self._usages,
            },
        }


class _RequestPoller:
    """The wait from the creation of a request to its result."""

    def __init__(
        self,
        clock: IReactorTime,
        clients: Sequence[IKubeClient],
        signer: str,
        name: str,
        on_waiting: Callable[[str], object],
    ) -> None:
        self._clock = clock
        self._clients = cycle(clients)
        self._client = next(self._clients)
        self._signer = signer
        self._name = name
        self._on_waiting = on_waiting
        self._last_report = ""

    async def certificate(self, created: Object) -> bytes:
        """Poll the request, beginning with its state at creation, until the signer has answered."""
        deadline = self._clock.seconds() + MAX_WAIT
        pause = _MIN_PAUSE
        request: Mapping[str, Any] | None = created
        while True:
            pem = None if request is None else self._certificate_in(request)
            if pem is not None:
                return pem
            left = deadline - self._clock.seconds()
            if left <= 0:
                raise NotIssued(f"{self._last_report}; gave up after 15 minutes")
            await deferLater(self._clock, min(left, pause * random.uniform(0.8, 1.0)))
            pause = min(pause * _PAUSE_FACTOR, _MAX_PAUSE)
            request = await self._read()

    async def _read(self) -> Mapping[str, Any] | None:
        """Read the request again; ``None`` if the API cannot be read at this time."""
        try:
            return mapping(await self._client.get(CERTIFICATE_SIGNING_REQUESTS, self._name))
        except NotFound:
            raise NotIssued(f"{self._name} was deleted before it was approved or denied") from None
        except (ApiError, ApiUnreachable) as error:
            # A new request would fare no better, and would leave this one behind.
            if isinstance(error, ApiUnreachable):
                self._client = next(self._clients)
            self._report(f"{self._name} cannot be read: {error}")
            return None

    def _certificate_in(self, request: Mapping[str, Any]) -> bytes | None:
        status = mapping(request.get("status"))
        conditions = _conditions(status)
        for kind, what in (("Denied", "was denied"), ("Failed", "was rejected by its signer")):
            if kind in conditions:
                raise Denied(f"{self._name} {what}: {_reason_text(conditions[kind])}")
        encoded = status.get("certificate")
        if encoded:
            return _decoded(self._name, encoded)
        if "Approved" in conditions:
            self._report(
                f"{self._name} is approved and not signed yet by {self._signer}:"
                " check kube-controller-manager if this persists"
            )
        else:
            self._report(
                f"waiting for approval of {self._name}: kubectl certificate approve {self._name}"
            )
        return None

    def _report(self, sentence: str) -> None:
        if sentence != self._last_report:
            self._last_report = sentence
            self._on_waiting(sentence)


def _name(request: Object) -> str:
    name = text(mapping(request.get("metadata")).get("name"))
    if not name:
        raise NotIssued("the API has created a certificate request without a name")
    return name


def _conditions(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the conditions that hold, by type; those without a ``status`` hold.

    Only later versions of the API have ``status`` (``CertificateSigningRequestCondition``).
    """
    return {
        str(each.get("type")): each
        for each in objects(status.get("conditions"))
        if each.get("status", "True") == "True"
    }


def _reason_text(condition: Mapping[str, Any]) -> str:
    parts = (condition.get("reason"), condition.get("message"))
    text = " ".join(" ".join(str(part).split()) for part in parts if part)
    return text[:_MAX_MESSAGE] or "no reason is given"


def _decoded(name: str, encoded: object) -> bytes:
    if not isinstance(encoded, str) or len(encoded) > _MAX_CERTIFICATE:
        raise NotIssued(f"{name}: the signer's response is not a certificate in base64")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise NotIssued(f"{name}: the signer's response is not a certificate in base64") from None
