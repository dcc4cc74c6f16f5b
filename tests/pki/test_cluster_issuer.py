"""Requests to a signer of the cluster, and its responses."""

from __future__ import annotations

import base64
from dataclasses import replace
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from tests.pki.signing import SigningApi, issue
from tests.pki.support import EDGE_1, Issuer, clock_now
from yurttunnel.kube.errors import ApiUnreachable, NotAllowed
from yurttunnel.kube.resources import CERTIFICATE_SIGNING_REQUESTS
from yurttunnel.pki.certificate_template import proxy_client_template, serving_template
from yurttunnel.pki.cluster_identity import agent_template
from yurttunnel.pki.cluster_issuer import MAX_WAIT, ClusterIssuer
from yurttunnel.pki.credentials import certificates_to_pem, new_key
from yurttunnel.pki.identity import Identifiers
from yurttunnel.pki.issuer import Denied, NotIssued, obtain
from yurttunnel.pki.names import BadIdentity

SERVING = serving_template(["tunnel.example"], [ip_address("192.0.2.1"), ip_address("::1")])
CLIENT_USAGES = ["digital signature", "key encipherment", "client auth"]


class TemplateTests(SynchronousTestCase):
    """Templates of certificates."""

    def test_serving(self):
        """The serving certificate is one of kubelet-serving, as in yurttunnel 1.2."""
        self.assertEqual(SERVING.signer, "kubernetes.io/kubelet-serving")
        self.assertEqual(SERVING.common_name, "system:node:tunnel-server")
        self.assertEqual(SERVING.organizations, ("system:nodes",))
        self.assertEqual(SERVING.usages, ["digital signature", "key encipherment", "server auth"])

    def test_proxy_client(self):
        """The certificate for kubelets has the name of yurttunnel 1.2 and no other names."""
        template = proxy_client_template()
        self.assertEqual(template.signer, "kubernetes.io/kube-apiserver-client")
        self.assertEqual(template.common_name, "tunnel-proxy-client")
        self.assertEqual(template.organizations, ("openyurt:yurttunnel",))
        self.assertEqual(template.usages, CLIENT_USAGES)
        request = x509.load_pem_x509_csr(template.request(ec.generate_private_key(ec.SECP256R1())))
        self.assertEqual(list(request.extensions), [])

    def test_agent(self):
        """An agent's certificate has its node's name first, then the other identifiers."""
        template = agent_template("edge-1", replace(EDGE_1, hosts=frozenset({"a.example"})))
        self.assertEqual(template.signer, "kubernetes.io/kube-apiserver-client")
        self.assertEqual(template.common_name, "tunnel-agent:edge-1")
        self.assertEqual(template.organizations, ("openyurt:yurttunnel",))
        self.assertEqual(template.usages, CLIENT_USAGES)
        self.assertEqual(template.dns_names, ("edge-1", "a.example"))
        self.assertEqual(template.addresses, (ip_address("192.0.2.7"),))

    def test_agent_with_bad_names(self):
        """A node with invalid names is rejected before a request is made."""
        for node, hosts in (("Edge", frozenset()), ("edge", frozenset({"a b"}))):
            self.assertRaises(BadIdentity, agent_template, node, Identifiers(hosts))

    def test_order(self):
        """Names are compared as sets, since informers return them in any order."""
        one = replace(SERVING, dns_names=("a", "b"))
        self.assertTrue(one.covers(replace(one, dns_names=("b", "a"))))
        self.assertFalse(one.covers(replace(one, dns_names=("b", "c"))))
        self.assertFalse(replace(one, addresses=()).covers(one))

    def test_extra_names_do(self):
        """A certificate with additional names suffices, one that lacks names does not."""
        issuer = Issuer.make(self)
        more = replace(SERVING, dns_names=("b.example", "tunnel.example"))
        certificate = issue(issuer, more).certificate
        self.assertIsNone(SERVING.problem(certificate))
        problem = more.problem(issue(issuer, SERVING).certificate)
        self.assertEqual(problem, "lacks b.example")

    def test_other_certificates(self):
        """A certificate for another name, organization or use is a problem."""
        issuer = Issuer.make(self)
        certificate = issue(issuer, SERVING).certificate
        for other, words in (
            (replace(SERVING, common_name="x"), "and not for 'x'"),
            (replace(SERVING, organizations=("y",)), "and not for 'y'"),
            (replace(SERVING, usage="client auth"), "not meant for client auth"),
        ):
            self.assertIn(words, other.problem(certificate))


class RequestTests(SynchronousTestCase):
    """One request, from its creation to the certificate."""

    def setUp(self):
        """Create an API with a signer."""
        self.clock = clock_now()
        self.issuer = Issuer.make(self, self.clock)
        self.api = SigningApi(self.issuer)
        self.waits = []

    def ask(self, template=SERVING):
        """Request a certificate."""
        issuer = ClusterIssuer(self.clock, self.api, template.signer, template.usages)
        return Deferred.fromCoroutine(
            obtain(self.clock, issuer, template, new_key(), self.waits.append)
        )

    def fails(self, asked, kind, words):
        """Assert the error of a request."""
        error = self.failureResultOf(asked, kind).value
        self.assertIn(words, str(error))
        self.assertNotIn("\n", str(error))

    def test_object(self):
        """The object has the fields of certificates.k8s.io/v1, with a generated name."""
        self.ask()
        (name,) = self.api.created
        self.assertTrue(name.startswith("csr-"))
        found = self.api.look(CERTIFICATE_SIGNING_REQUESTS, name)
        self.assertEqual(found["apiVersion"], "certificates.k8s.io/v1")
        self.assertEqual(found["kind"], "CertificateSigningRequest")
        self.assertEqual(found["spec"]["signerName"], "kubernetes.io/kubelet-serving")
        self.assertEqual(found["spec"]["usages"], SERVING.usages)
        request = self.api.request(name)
        self.assertTrue(request.is_signature_valid)
        self.assertEqual(
            request.subject.rfc4514_string(), "CN=system:node:tunnel-server,O=system:nodes"
        )
        self.assertIsInstance(request.public_key().curve, ec.SECP256R1)
        self.assertEqual(self.api.names(name), ["tunnel.example", "192.0.2.1", "::1"])

    def test_issued(self):
        """The certificate is returned with its key soon after it was issued."""
        asked = self.ask()
        self.clock.advance(1)
        self.assertNoResult(asked)
        certificate = self.api.sign("csr-0")
        self.clock.advance(2)
        issued = self.successResultOf(asked)
        self.assertEqual(issued.certificate, certificate)
        self.assertEqual(issued.key.public_key(), certificate.public_key())
        self.assertEqual(issued.chain, ())

    def test_at_once(self):
        """If the signer has answered by the first read, there is no wait."""
        self.api.prompt = True
        self.successResultOf(self.ask())
        self.assertEqual(self.api.reads, 0)

    def test_new_key(self):
        """Every request has a new key."""
        self.ask(), self.ask()
        one, two = (self.api.request(name).public_key() for name in self.api.created)
        self.assertNotEqual(one, two)

    def test_chain(self):
        """The rest of the signer's chain is sent to peers."""
        asked = self.ask()
        certificate = self.api.sign("csr-0")
        authority = self.issuer.authority.certificate
        self.api.answer("csr-0", certificates_to_pem([certificate, authority]))
        self.clock.advance(1)
        self.assertEqual(self.successResultOf(asked).chain, (authority,))

    def test_timeout(self):
        """The polling interval grows with the time that the answer takes."""
        for wait in (1, 10, 30):
            asked = self.ask()
            self.clock.pump([0.05] * (wait * 20))
            self.api.sign(self.api.created[-1])
            self.clock.pump([0.05] * (wait * 6 + 6))
            self.successResultOf(asked)
        self.ask()
        self.clock.pump([1.0] * 60)
        self.api.calls.clear()
        self.clock.pump([1.0] * 600)
        self.assertGreaterEqual(self.api.reads, 55)
        self.assertLessEqual(self.api.reads, 85)

    def test_subject_in_the_message(self):
        """Each stage of the wait has a sentence with what to do."""
        self.ask()
        self.api.approve("csr-0")
        self.clock.advance(1)
        self.clock.advance(1)
        first, second = self.waits
        self.assertEqual(first, "waiting for approval of csr-0: kubectl certificate approve csr-0")
        self.assertIn("csr-0 is approved and not signed yet by kubernetes.io/", second)

    def test_denied(self):
        """A denial ends the request, with the reason in one line."""
        asked = self.ask()
        self.api.condition("csr-0", "Denied", reason="Policy", message="not\nfor you")
        self.clock.advance(1)
        self.fails(asked, Denied, "csr-0 was denied: Policy not for you")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_refused_by_signer(self):
        """A failure of the signer also ends it, even after the approval."""
        asked = self.ask()
        self.api.approve("csr-0")
        self.api.condition("csr-0", "Failed")
        self.clock.advance(1)
        self.fails(asked, Denied, "csr-0 was rejected by its signer: no reason is given")

    def test_unmet_condition(self):
        """A condition with the status False is ignored."""
        asked = self.ask()
        self.api.condition("csr-0", "Denied", status="False")
        self.clock.advance(1)
        self.assertNoResult(asked)

    def test_deadline(self):
        """The request is given up after 15 minutes."""
        asked = self.ask()
        self.clock.pump([10.0] * int(MAX_WAIT / 10 - 1))
        self.assertNoResult(asked)
        self.clock.advance(10.1)
        self.fails(asked, NotIssued, "waiting for approval of csr-0")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_deleted(self):
        """A deleted request is given up."""
        asked = self.ask()
        self.api.remove(CERTIFICATE_SIGNING_REQUESTS, "csr-0")
        self.clock.advance(1)
        self.fails(asked, NotIssued, "csr-0 was deleted")

    def test_not_created(self):
        """The API's error on creation is the error of the request."""
        self.api.unreachable()
        self.fails(self.ask(), NotIssued, "connection refused")

    def test_api_loss(self):
        """The wait continues while the API is unreachable or does not show the request."""
        asked = self.ask()
        for error in (ApiUnreachable("refused"), NotAllowed(403, "Forbidden", "no")):
            self.api.fail(error)
            self.clock.pump([10.0] * 5)
            self.assertNoResult(asked)
            self.assertIn("csr-0 cannot be read", self.waits[-1])
        self.api.recover()
        self.api.sign("csr-0")
        self.clock.advance(10)
        self.successResultOf(asked)
        self.assertEqual(len(self.api.created), 1)

    def test_another_server(self):
        """With several API servers, a request is meanwhile read at another one."""
        lost = SigningApi(self.issuer)
        issuer = ClusterIssuer(self.clock, lost, SERVING.signer, SERVING.usages, [lost, self.api])
        asked = Deferred.fromCoroutine(
            obtain(self.clock, issuer, SERVING, new_key(), self.waits.append)
        )
        (name,) = lost.created
        self.api.put(CERTIFICATE_SIGNING_REQUESTS, lost.look(CERTIFICATE_SIGNING_REQUESTS, name))
        lost.unreachable()
        self.api.sign(name)
        self.clock.pump([1.0] * 5)
        self.successResultOf(asked)

    def test_cancelled(self):
        """Cancelling ends the wait."""
        asked = self.ask()
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_wrong_answers(self):
        """A certificate with another key, name or use is rejected."""
        expired = issue(self.issuer, SERVING, lifetime=-1)
        for answer, words in (
            (b"nonsense", "does not hold certificates"),
            (certificates_to_pem([expired.certificate]), "is for another key"),
        ):
            asked = self.ask()
            name = self.api.created[-1]
            self.api.answer(name, answer)
            self.clock.advance(1)
            self.fails(asked, NotIssued, words)
            self.assertIn(name, str(self.waits))

    def test_wrong_base64(self):
        """A malformed answer is an error like others."""
        for answer in ("%%%", 7, ["x"], "A" * (1 << 20)):
            asked = self.ask()
            self.api.set_status(self.api.created[-1], {"certificate": answer})
            self.clock.advance(1)
            self.fails(asked, NotIssued, "not a certificate in base64")

    def test_malformed_objects(self):
        """Malformed objects are ignored or rejected."""
        for status in (None, [], {"conditions": "x"}, {"conditions": [None, 3, {}]}):
            asked = self.ask()
            self.api.set_status(self.api.created[-1], status)
            self.clock.advance(1)
            self.assertNoResult(asked)
            asked.addErrback(lambda failure: failure.trap(CancelledError))
            asked.cancel()
        self.patch(self.api, "create", lambda *_: Deferred.fromCoroutine(_nothing()))
        self.fails(self.ask(), NotIssued, "without a name")

    def test_narrowed(self):
        """A certificate that lacks a name or has another use is rejected."""
        for template, words in (
            (replace(SERVING, dns_names=()), "lacks tunnel.example"),
            (replace(SERVING, usage="client auth"), "not meant for server auth"),
            (replace(SERVING, common_name="root"), "is for 'root'"),
        ):
            asked = self.ask()
            name = self.api.created[-1]
            self._sign_as(name, template)
            self.clock.advance(1)
            self.fails(asked, NotIssued, words)

    def test_expired(self):
        """An expired certificate is rejected, with a hint about clocks."""
        self.api.lifetime = -1
        asked = self.ask()
        self.api.sign("csr-0")
        self.clock.advance(1)
        self.fails(asked, NotIssued, "compare the machines' clocks")

    def test_impossible_names(self):
        """Names that no certificate can have fail before the API is called."""
        self.fails(
            self.ask(replace(SERVING, dns_names=("ä.example",))), NotIssued, "no certificate"
        )
        self.assertEqual(self.api.created, [])

    def _sign_as(self, name, template):
        """Sign the key of a request, but with other names."""
        request = self.api.request(name)
        names = [x509.DNSName(each) for each in template.dns_names]
        names += [x509.IPAddress(each) for each in template.addresses]
        subject = x509.load_pem_x509_csr(
            template.request(ec.generate_private_key(ec.SECP256R1()))
        ).subject
        usage = {
            "server auth": x509.oid.ExtendedKeyUsageOID.SERVER_AUTH,
            "client auth": x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH,
        }[template.usage]
        certificate = self.issuer.authority.sign(
            subject, request.public_key(), names, usage, 3600.0
        )
        encoded = base64.b64encode(certificates_to_pem([certificate])).decode()
        self.api.set_status(name, {"certificate": encoded})


async def _nothing():
    return {"metadata": None}
