"""A Kubernetes API with certificate requests, and the authority that signs them."""

from __future__ import annotations

import base64

from cryptography import x509
from twisted.internet.defer import succeed

from tests.kube.fakes import FakeKubeClient
from tests.pki.support import Issuer
from yurttunnel.kube.errors import ApiUnreachable
from yurttunnel.kube.resources import CERTIFICATE_SIGNING_REQUESTS
from yurttunnel.pki.credentials import certificates_to_pem, new_key
from yurttunnel.pki.issuer import CertificateTemplate, IssuedCertificate

EXTENDED = {
    "server auth": x509.oid.ExtendedKeyUsageOID.SERVER_AUTH,
    "client auth": x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH,
}


def issue(issuer: Issuer, template: CertificateTemplate, lifetime: float = 3600.0):
    """Issue a certificate as a signer of the cluster would."""
    key = new_key()
    request = x509.load_pem_x509_csr(template.request(key))
    return IssuedCertificate(key, _signed(issuer, request, template.usage, lifetime))


def _signed(issuer, request, usage, lifetime):
    try:
        names = list(request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        names = []
    return issuer.authority.sign(
        request.subject, request.public_key(), names, EXTENDED[usage], lifetime
    )


class SigningApi(FakeKubeClient):
    """An API with a signer: requests wait for :meth:`sign`, or with ``prompt`` are signed at once.

    ``created`` are their names, ``csr-0`` and so on.
    """

    def __init__(self, issuer: Issuer, prompt: bool = False, lifetime: float = 3600.0) -> None:
        super().__init__(issuer.clock)
        self.issuer = issuer
        self.prompt = prompt
        self.lifetime = lifetime
        self.created: list[str] = []

    def create(self, resource, body, namespace=None):
        """Accept a request, and name it."""
        assert body["metadata"] == {"generateName": "csr-"}, body
        name = f"csr-{len(self.created)}"
        created = super().create(resource, {**body, "metadata": {"name": name}}, namespace)
        if created.called and isinstance(created.result, dict):
            self.created.append(name)
            if self.prompt:
                self.sign(name)
                return succeed(self.look(resource, name))
        return created

    @property
    def reads(self) -> int:
        """The number of reads of a request."""
        return sum(1 for verb, _, _ in self.calls if verb == "get")

    def unreachable(self) -> None:
        """Fail all calls until ``recover()``."""
        self.fail(ApiUnreachable("https://10.96.0.1: connection refused"))

    def set_status(self, name: str, status: object) -> None:
        """Replace the status of a request."""
        found = self.look(CERTIFICATE_SIGNING_REQUESTS, name)
        self.put(CERTIFICATE_SIGNING_REQUESTS, {**found, "status": status})

    def status(self, name: str) -> dict:
        """Return the status of a request."""
        return self.look(CERTIFICATE_SIGNING_REQUESTS, name).get("status", {})

    def condition(self, name: str, kind: str, **fields: str) -> None:
        """Add a condition to a request."""
        status = self.status(name)
        conditions = [*status.get("conditions", ()), {"type": kind, "status": "True", **fields}]
        self.set_status(name, {**status, "conditions": conditions})

    def approve(self, name: str) -> None:
        """Approve a request."""
        self.condition(name, "Approved", reason="AutoApproved")

    def sign(self, name: str) -> x509.Certificate:
        """Issue the requested certificate."""
        certificate = _signed(
            self.issuer, self.request(name), self.spec(name)["usages"][-1], self.lifetime
        )
        self.answer(name, certificates_to_pem([certificate]))
        return certificate

    def answer(self, name: str, certificate: bytes) -> None:
        """Set the certificate in a request's status."""
        encoded = base64.b64encode(certificate).decode()
        self.set_status(name, {**self.status(name), "certificate": encoded})

    def spec(self, name: str) -> dict:
        """Return the spec of a request."""
        return self.look(CERTIFICATE_SIGNING_REQUESTS, name)["spec"]

    def request(self, name: str) -> x509.CertificateSigningRequest:
        """Return the PKCS #10 request."""
        return x509.load_pem_x509_csr(base64.b64decode(self.spec(name)["request"]))

    def names(self, name: str) -> list[str]:
        """Return the requested alternative names."""
        names = self.request(name).extensions.get_extension_for_class(x509.SubjectAlternativeName)
        return [str(each.value) for each in names.value]
