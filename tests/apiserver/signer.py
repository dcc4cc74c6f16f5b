"""The signer of a cluster without a controller manager: it signs approved requests.

It uses only the API, so it works with any API server. It approves nothing.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from tests.apiserver.signing import (
    SIGNERS,
    NotSigned,
    SigningAuthority,
    check_request,
    lifetime,
)
from yurttunnel.kube.errors import ApiError, ApiUnreachable, NotFound
from yurttunnel.kube.interfaces import IInformers, IKubeClient, InformerSpec
from yurttunnel.kube.resources import CERTIFICATE_SIGNING_REQUESTS, Object
from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.credentials import certificates_to_pem

RETRY_SECONDS = (1.0, 30.0)
"""The initial and the maximum delay of a retry in seconds."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request that may be ready to be signed; equal if none of these fields differ."""

    name: str
    ready: bool


def _waiting(request: Object) -> _Waiting:
    status = request.get("status") or {}
    types = {
        one.get("type") for one in status.get("conditions") or [] if one.get("status") == "True"
    }
    ready = (
        (request.get("spec") or {}).get("signerName") in SIGNERS
        and "Approved" in types
        and not types & {"Denied", "Failed"}
        and not status.get("certificate")
    )
    return _Waiting(request["metadata"]["name"], ready)


class CertificateSigner(Service):
    """Signs approved CertificateSigningRequests of the signers of Kubernetes while it runs.

    ``authority`` signs, and may be replaced at any time; ``duration`` is the maximum validity of
    a certificate in seconds, and the default.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        client: IKubeClient,
        informers: IInformers,
        authority: SigningAuthority,
        duration: float,
    ) -> None:
        self.authority = authority
        self._clock = clock
        self._client = client
        self._duration = datetime.timedelta(seconds=duration)
        spec = InformerSpec(CERTIFICATE_SIGNING_REQUESTS, _waiting)
        self._informer = informers.informer(spec)
        self._unsubscribe: Callable[[], None] | None = None
        self._signing: dict[str, Deferred[None]] = {}

    def startService(self) -> None:
        """Start, with the existing requests."""
        super().startService()
        self._unsubscribe = self._informer.add_handler(self._changed)

    def stopService(self) -> Deferred[Any]:
        """Stop signing."""
        super().stopService()
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        under_way = list(self._signing.values())
        for signing in under_way:
            signing.cancel()
        return gatherResults(under_way)

    def _changed(self, old: _Waiting | None, new: _Waiting | None) -> None:
        if new is None or not new.ready or new.name in self._signing:
            return
        signing = Deferred.fromCoroutine(self._sign_at_last(new.name))
        if not signing.called:
            self._signing[new.name] = signing
            _ = signing.addBoth(self._signed, new.name)

    def _signed(self, result: None, name: str) -> None:
        del self._signing[name]

    async def _sign_at_last(self, name: str) -> None:
        """Sign a request, and retry until that succeeds."""
        pause, longest = RETRY_SECONDS
        while True:
            try:
                await self._sign(name)
                return
            except CancelledError:
                return
            except NotFound:
                return
            except (ApiError, ApiUnreachable) as error:
                self._log.warn(
                    "certificate request {name} is tried again in {pause:g} s: {error}",
                    name=name,
                    pause=pause,
                    error=error,
                )
            except Exception:
                # An error in this request must not prevent the signing of others.
                self._log.failure("Defect: certificate request {name} is not signed", name=name)
                return
            try:
                await deferLater(self._clock, pause)
            except CancelledError:
                return
            pause = min(2 * pause, longest)

    async def _sign(self, name: str) -> None:
        request = await self._client.get(CERTIFICATE_SIGNING_REQUESTS, name)
        if not _waiting(request).ready:
            return
        spec, status = request["spec"], request["status"]
        try:
            status["certificate"] = self._certificate(spec)
        except NotSigned as error:
            self._log.warn("certificate request {name} fails: {error}", name=name, error=error)
            now = utc_now(self._clock).strftime("%Y-%m-%dT%H:%M:%SZ")
            status["conditions"].append(
                {
                    "type": "Failed",
                    "status": "True",
                    "reason": "SignerValidationFailure",
                    "message": str(error),
                    "lastUpdateTime": now,
                }
            )
        await self._client.update(CERTIFICATE_SIGNING_REQUESTS, request, "status")

    def _certificate(self, spec: Object) -> str:
        """Return the certificate for ``status.certificate``; raise :class:`NotSigned`."""
        try:
            request = x509.load_pem_x509_csr(base64.b64decode(spec["request"]))
            if not request.is_signature_valid:
                raise NotSigned("its signature is not of the key that it is for")
            usages = [str(usage) for usage in spec.get("usages") or []]
            check_request(spec["signerName"], request, usages)
            span = lifetime(spec.get("expirationSeconds"), self._duration)
            certificate = self.authority.sign(request, usages, span, utc_now(self._clock))
        except (KeyError, TypeError, ValueError, binascii.Error, UnsupportedAlgorithm) as error:
            raise NotSigned(f"it cannot be read: {error}") from None
        except InvalidSignature:
            raise NotSigned("its signature is not of the key that it is for") from None
        return base64.b64encode(certificates_to_pem([certificate])).decode("ascii")


__all__ = ["CertificateSigner", "SigningAuthority"]
