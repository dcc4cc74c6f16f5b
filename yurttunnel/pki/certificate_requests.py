"""Certificates from a signer of the cluster, by a ``CertificateSigningRequest``.

See "Certificates and Certificate Signing Requests" of the Kubernetes documentation. The request
is read again by its name, which needs the verbs create and get and no more: not even a watch.
"""

from __future__ import annotations

import base64
import binascii
import random
from collections.abc import Callable, Mapping
from typing import Any

from cryptography import x509
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from yurttunnel.kube.errors import ApiError, ApiUnreachable, NotFound
from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.kube.resources import CERTIFICATE_SIGNING_REQUESTS, Object
from yurttunnel.pki.authority import utc_now
from yurttunnel.pki.certificate_template import CertificateTemplate, IssuedCertificate
from yurttunnel.pki.credentials import (
    BadCredentials,
    PrivateKey,
    certificates_from_pem,
    new_key,
)

MAX_WAIT = 15 * 60.0
"""Seconds for the approval and the signature of one request."""
_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 10.0
"""Seconds between two looks at a request."""
_LONGER_EACH_TIME = 1.25
"""So that what took a while to be issued is found a quarter of that later at most."""
_MAX_CERTIFICATE = 256 * 1024
"""Bytes that a certificate and its chain may have, encoded as it comes."""
_MAX_MESSAGE = 500


class RequestFailed(Exception):
    """No certificate was obtained; one line that names the request and says why."""


class RequestDenied(RequestFailed):
    """The request was denied, or the signer has refused it."""


async def request_certificate(
    clock: IReactorTime,
    client: IKubeClient,
    template: CertificateTemplate,
    waits: Callable[[str], object] = lambda sentence: None,
) -> IssuedCertificate:
    """Have a new key certified, and give both once the certificate is what was asked for.

    ``waits`` is called with a sentence that says for whom it waits, whenever that changes.
    Cancelling ends the waiting; the request itself stays, and the cluster removes it in its
    time. Raises :class:`RequestFailed`, also after :data:`MAX_WAIT`, ``ApiError`` and
    ``ApiUnreachable``.
    """
    key = new_key()
    request = await client.create(CERTIFICATE_SIGNING_REQUESTS, _object(template, key))
    name = _name(request)
    pem = await _Waiting(clock, client, template, name, waits).certificate(request)
    return _checked(clock, template, name, key, pem)


def _object(template: CertificateTemplate, key: PrivateKey) -> Object:
    try:
        request = template.request(key)
    except ValueError as error:
        raise RequestFailed(f"no certificate can have the names that are wanted: {error}") from None
    return {
        "apiVersion": CERTIFICATE_SIGNING_REQUESTS.api_version,
        "kind": CERTIFICATE_SIGNING_REQUESTS.kind,
        "metadata": {"generateName": "csr-"},
        "spec": {
            "request": base64.b64encode(request).decode("ascii"),
            "signerName": template.signer,
            "usages": template.usages,
        },
    }


class _Waiting:
    """The time from the creation of a request to the signer's answer."""

    def __init__(
        self,
        clock: IReactorTime,
        client: IKubeClient,
        template: CertificateTemplate,
        name: str,
        waits: Callable[[str], object],
    ) -> None:
        self._clock = clock
        self._client = client
        self._template = template
        self._name = name
        self._waits = waits
        self._said = ""

    async def certificate(self, created: Object) -> bytes:
        """Look at the request, at first as it was created, until it has been answered."""
        deadline = self._clock.seconds() + MAX_WAIT
        pause = _FIRST_PAUSE
        request: Object | None = created
        while True:
            pem = None if request is None else self._answer(request)
            if pem is not None:
                return pem
            left = deadline - self._clock.seconds()
            if left <= 0:
                raise RequestFailed(f"{self._said}; given up after 15 minutes")
            await deferLater(self._clock, min(left, pause * random.uniform(0.8, 1.0)))
            pause = min(pause * _LONGER_EACH_TIME, _LONGEST_PAUSE)
            request = await self._look()

    async def _look(self) -> Object | None:
        """Read the request again; ``None`` when the API does not show it at this time."""
        try:
            request: Any = await self._client.get(CERTIFICATE_SIGNING_REQUESTS, self._name)
        except NotFound:
            raise RequestFailed(f"{self._name} was deleted before it was answered") from None
        except (ApiError, ApiUnreachable) as error:
            # A new request would be no better off, and leave this one behind.
            self._say(f"{self._name} cannot be read: {error}")
            return None
        return request if isinstance(request, dict) else {}

    def _answer(self, request: Object) -> bytes | None:
        status = request.get("status")
        status = status if isinstance(status, Mapping) else {}
        conditions = _conditions(status)
        for kind, what in (("Denied", "was denied"), ("Failed", "was refused by its signer")):
            if kind in conditions:
                raise RequestDenied(f"{self._name} {what}: {_told(conditions[kind])}")
        encoded = status.get("certificate")
        if encoded:
            return _decoded(self._name, encoded)
        if "Approved" in conditions:
            self._say(
                f"{self._name} is approved and waits for its signer {self._template.signer}:"
                " look at kube-controller-manager if that lasts"
            )
        else:
            self._say(
                f"waits for approval of {self._name}: kubectl certificate approve {self._name}"
            )
        return None

    def _say(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            self._waits(sentence)


def _name(request: Object) -> str:
    metadata = request.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not name:
        raise RequestFailed("the API has created a certificate request without a name")
    return name


def _conditions(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the conditions that hold, by type; one that does not say whether it does holds.

    Only later versions of the API have its ``status`` (``CertificateSigningRequestCondition``).
    """
    conditions = status.get("conditions")
    return {
        str(each.get("type")): each
        for each in (conditions if isinstance(conditions, list) else [])
        if isinstance(each, Mapping) and each.get("status", "True") == "True"
    }


def _told(condition: Mapping[str, Any]) -> str:
    parts = (condition.get("reason"), condition.get("message"))
    text = " ".join(" ".join(str(part).split()) for part in parts if part)
    return text[:_MAX_MESSAGE] or "no reason is given"


def _decoded(name: str, encoded: object) -> bytes:
    if not isinstance(encoded, str) or len(encoded) > _MAX_CERTIFICATE:
        raise RequestFailed(f"{name}: the signer's answer is not a certificate in base64")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise RequestFailed(f"{name}: the signer's answer is not a certificate in base64") from None


def _checked(
    clock: IReactorTime, template: CertificateTemplate, name: str, key: PrivateKey, pem: bytes
) -> IssuedCertificate:
    try:
        certificate, *chain = certificates_from_pem(pem)
    except BadCredentials as error:
        raise RequestFailed(f"{name}: the signer's answer cannot be used: {error}") from None
    problem = _problem(clock, template, key, certificate)
    if problem is not None:
        raise RequestFailed(f"{name}: the certificate that the signer has issued {problem}")
    return IssuedCertificate(key, certificate, tuple(chain))


def _problem(
    clock: IReactorTime,
    template: CertificateTemplate,
    key: PrivateKey,
    certificate: x509.Certificate,
) -> str | None:
    try:
        if certificate.public_key() != key.public_key():
            return "is for another key"
    except ValueError as error:
        return f"is malformed: {error}"
    end = certificate.not_valid_after_utc
    if utc_now(clock) >= end:
        return f"has expired already, at {end:%F %T} UTC: compare the machines' clocks"
    return template.problem(certificate)
