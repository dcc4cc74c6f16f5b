"""The signer of certificate requests, over an API in memory."""

from __future__ import annotations

import base64
import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from twisted.internet.defer import fail
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.apiserver.signer import RETRY_SECONDS, CertificateSigner
from tests.apiserver.signing import CLIENT, SigningAuthority
from tests.certificates import common_name
from tests.kube.fakes import FakeKubeClient
from yurttunnel.kube.errors import ApiUnreachable, Conflict
from yurttunnel.kube.informer import Informers
from yurttunnel.kube.resources import CERTIFICATE_SIGNING_REQUESTS as CSRS
from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.credentials import new_key

NOW = 1_750_000_000
DAY = datetime.timedelta(days=1)


def pem(name="tunnel-agent:edge-1"):
    """Return a request in PEM, in base64."""
    subject = common_name(name)
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    data = builder.sign(new_key(), hashes.SHA256()).public_bytes(Encoding.PEM)
    return base64.b64encode(data).decode()


def csr(name="csr", *conditions, **spec):
    """Return a request with conditions."""
    usages = ["digital signature", "client auth"]
    status = {"conditions": [{"type": one, "status": "True"} for one in conditions]}
    return {
        "metadata": {"name": name},
        "spec": {"request": pem(), "signerName": CLIENT, "usages": usages, **spec},
        "status": status,
    }


class Client(FakeKubeClient):
    """An API that rejects writes with ``refusal``, if set; ``writes`` counts them."""

    refusal = None
    writes = 0

    def update(self, resource, body, subresource=None):
        """Replace an object, or raise the error."""
        self.writes += 1
        if self.refusal is not None:
            return fail(self.refusal)
        return super().update(resource, body, subresource)


class SignerTests(SynchronousTestCase):
    """The signer."""

    def setUp(self):
        """Start the signer."""
        self.clock = Clock()
        self.clock.advance(NOW)
        self.client = Client(self.clock)
        self.informers = Informers(self.clock, self.client)
        authority = SigningAuthority.make("test", utc_now(self.clock), DAY)
        self.signer = CertificateSigner(
            self.clock, self.client, self.informers, authority, duration=3600
        )
        self.informers.startService()
        self.signer.startService()
        self.addCleanup(self.informers.stopService)
        self.addCleanup(self.stop)

    def stop(self):
        """Stop the signer."""
        if self.signer.running:
            self.successResultOf(self.signer.stopService())

    def put(self, *arguments, **spec):
        """Put a request into the API."""
        self.client.put(CSRS, csr(*arguments, **spec))

    def status(self, name="csr"):
        """Return the status of a request."""
        return self.client.look(CSRS, name)["status"]

    def certificate(self, name="csr"):
        """Return the certificate of a request."""
        return x509.load_pem_x509_certificate(base64.b64decode(self.status(name)["certificate"]))

    def test_signed(self):
        """An approved request is signed once; the approval stays."""
        self.put("csr", "Approved")
        made = self.certificate()
        made.verify_directly_issued_by(self.signer.authority.certificate)
        end = utc_now(self.clock) + datetime.timedelta(hours=1)
        self.assertEqual(end, made.not_valid_after_utc)
        self.assertEqual(["Approved"], [one["type"] for one in self.status()["conditions"]])
        self.assertEqual(1, self.client.writes)

    def test_expiration(self):
        """A request may have a shorter duration."""
        self.put("csr", "Approved", expirationSeconds=900)
        end = utc_now(self.clock) + datetime.timedelta(minutes=15)
        self.assertEqual(end, self.certificate().not_valid_after_utc)

    def test_approved_later(self):
        """A request is signed when it is approved."""
        self.put()
        self.assertNotIn("certificate", self.status())
        self.put("csr", "Approved")
        self.certificate()

    def test_not_signed(self):
        """Requests that are not approved, denied, failed or for other signers are ignored."""
        self.put("a")
        self.put("b", "Denied")
        self.put("c", "Approved", "Failed")
        self.put("d", "Approved", signerName="example.com/other")
        self.client.put(CSRS, {"metadata": {"name": "e"}})
        self.client.put(CSRS, {"metadata": {"name": "f"}, "spec": None, "status": None})
        self.assertEqual(0, self.client.writes)

    def test_failed(self):
        """A rejected request gets the condition Failed with the reason."""
        self.put("csr", "Approved", usages=["server auth"])
        status = self.status()
        self.assertNotIn("certificate", status)
        self.assertEqual(
            {
                "type": "Failed",
                "status": "True",
                "reason": "SignerValidationFailure",
                "message": "invalid usage for client certificate: server auth",
                "lastUpdateTime": "2025-06-15T15:06:40Z",
            },
            status["conditions"][1],
        )

    def test_malformed(self):
        """An invalid request fails, and the others are signed."""
        for name, request in (
            ("a", "x"),
            ("b", ""),
            ("c", None),
            ("d", base64.b64encode(b"x").decode()),
        ):
            self.put(name, "Approved", request=request)
            self.assertEqual("Failed", self.status(name)["conditions"][1]["type"])
        self.put("csr", "Approved")
        self.certificate()

    def test_bad_signature(self):
        """A request that is not signed by its key fails."""
        good = base64.b64decode(pem())
        lines = good.splitlines()
        data = bytearray(base64.b64decode(b"".join(lines[1:-1])))
        data[-1] ^= 1
        changed = b"\n".join([lines[0], base64.b64encode(data), lines[-1], b""])
        self.put("csr", "Approved", request=base64.b64encode(changed).decode())
        self.assertNotIn("certificate", self.status())
        self.assertIn("Failed", [one["type"] for one in self.status()["conditions"]])

    def test_tried_again(self):
        """A failed write is retried with exponential backoff."""
        self.client.refusal = Conflict(409, "Conflict", "it has changed")
        self.put("csr", "Approved")
        self.assertEqual(1, self.client.writes)
        self.clock.advance(RETRY_SECONDS[0])
        self.clock.advance(RETRY_SECONDS[0])
        self.assertEqual(2, self.client.writes)
        self.clock.advance(RETRY_SECONDS[0])
        self.assertEqual(3, self.client.writes)
        self.client.refusal = None
        self.clock.advance(4 * RETRY_SECONDS[0])
        self.certificate()
        self.assertEqual(4, self.client.writes)

    def test_gone(self):
        """A deleted request is not retried."""
        self.client.refusal = ApiUnreachable("nobody is at home")
        self.put("csr", "Approved")
        self.client.remove(CSRS, "csr")
        for _ in range(3):
            self.clock.advance(RETRY_SECONDS[1])
        self.assertEqual(1, self.client.writes)

    def test_another_authority(self):
        """After the authority is replaced the new one signs."""
        self.put("a", "Approved")
        first = self.signer.authority
        self.signer.authority = SigningAuthority.make("new", utc_now(self.clock), DAY)
        self.put("b", "Approved")
        self.certificate("a").verify_directly_issued_by(first.certificate)
        self.certificate("b").verify_directly_issued_by(self.signer.authority.certificate)

    def test_what_is_there(self):
        """Requests that were approved before the start are signed at the start."""
        self.stop()
        self.put("csr", "Approved")
        self.assertNotIn("certificate", self.status())
        self.signer.startService()
        self.certificate()

    def test_stopped(self):
        """A stopped signer has no timers."""
        self.client.refusal = Conflict(409, "Conflict", "it has changed")
        self.put("csr", "Approved")
        self.stop()
        before = self.client.writes
        self.clock.advance(RETRY_SECONDS[1])
        self.assertEqual(before, self.client.writes)
