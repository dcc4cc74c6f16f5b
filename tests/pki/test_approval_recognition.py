"""Recognition of the tunnel's certificate requests in a cluster."""

from __future__ import annotations

import base64
import time

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.pki.signing_requests import (
    KUBELET,
    PEM,
    POD,
    SERVER,
    Cluster,
    agent_request,
    node,
    request_pem,
    signing_request,
    template_request,
    with_bits,
)
from yurttunnel.pki.approval_requests import MAX_REQUEST, Kind, is_decided, is_for_tunnel, recognize
from yurttunnel.pki.certificate_template import proxy_client_template, serving_template


class RecognitionTests(SynchronousTestCase):
    """Recognition of the tunnel's requests."""

    def test_kinds(self):
        """Each kind is recognized by its signer and its common name."""
        for kind, csr in (
            (Kind.SERVING, template_request(serving_template(["x.test"]), SERVER)),
            (Kind.PROXY_CLIENT, template_request(proxy_client_template(), SERVER)),
            (Kind.AGENT, agent_request()),
        ):
            self.assertIs(kind, recognize(csr).kind)
            self.assertTrue(is_for_tunnel(csr))

    def test_others(self):
        """Requests of kubelets, users and yurttunnel 1.2, and to other signers, are ignored."""
        serving = {"signer": "kubernetes.io/kubelet-serving"}
        for common_name, spec in (
            ("system:node:edge-1", serving),
            ("tunnel-proxy-client", serving),
            ("tunnel-agent:edge-1", serving),
            ("tunnel-agent:edge-1", {"signer": "kubernetes.io/kube-apiserver-client-kubelet"}),
            ("tunnel-agent:edge-1", {"signer": "example.com/ours"}),
            ("system:node:tunnel-server", {}),
            ("tunnel-agent-client", {}),
            ("jane", {}),
        ):
            pem = request_pem([("O", "openyurt:yurttunnel"), ("CN", common_name)])
            csr = signing_request(pem, KUBELET, **spec)
            self.assertIsNone(recognize(csr), common_name)
            self.assertFalse(is_for_tunnel(csr), common_name)

    def test_malformed(self):
        """Malformed requests are not recognized."""
        good = agent_request()
        pem = base64.b64decode(good["spec"]["request"])
        other = request_pem([("O", "openyurt:yurttunnel"), ("CN", "tunnel-agent:edge-2")])
        texts = [
            b"",
            b"nothing",
            pem[:-40],
            pem + other,
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" + pem,
            pem.replace(b"CERTIFICATE REQUEST", b"NEW CERTIFICATE REQUEST"),
            b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
            b"-----BEGIN CERTIFICATE REQUEST-----\nA===\n-----END CERTIFICATE REQUEST-----\n",
        ]
        # Version 2; RFC 2986 section 4.1 defines only version 1, which is 0.
        version = _DER.replace(b"\x02\x01\x00", b"\x02\x01\x01", 1)
        texts.append(PEM % base64.encodebytes(version))
        texts.append(PEM % base64.encodebytes(with_bits(_DER, b"tunnel-agent:edge-1")))
        for text in texts:
            self.assertIsNone(recognize(signing_request(text, KUBELET)), text)
        for request in (None, 5, "*", [], "AAAA", "é"):
            self.assertIsNone(recognize({"spec": {**good["spec"], "request": request}}))
        for csr in ({}, {"spec": None}, {"spec": []}, {"spec": {"signerName": []}}):
            self.assertIsNone(recognize(csr))

    def test_padded(self):
        """Padding with blank lines takes linear time, and a request that is too long is ignored."""
        good = base64.b64decode(agent_request()["spec"]["request"])
        beginning, rest = good.split(b"\n", 1)
        room = MAX_REQUEST * 3 // 4 - len(good)

        def padded(lines, behind=b""):
            request = b"%s%s\n%s%s" % (beginning, b"\n" * lines, rest, behind)
            return recognize(signing_request(request, KUBELET))

        before = time.process_time()
        self.assertIsNotNone(padded(room))
        for behind in (b"-", b"=", b"\nmore"):
            self.assertIsNone(padded(room - len(behind), behind))
        self.assertLess(time.process_time() - before, 1)
        self.assertIsNone(padded(room + 3))

    def test_many_names(self):
        """A request of a megabyte, which would block the server, is not parsed."""
        names = [x509.DNSName(f"a{number}.b") for number in range(50_000)]
        csr = signing_request(request_pem(names=names), KUBELET)
        before = time.process_time()
        self.assertFalse(is_for_tunnel(csr))
        self.assertIsNone(recognize(csr))
        self.assertLess(time.process_time() - before, 0.1)

    @given(st.data())
    @settings(deadline=None)
    def test_hostile(self, data):
        """No content of the other fields or of the request raises an exception."""
        json = st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=9),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
            max_leaves=6,
        )
        der = bytearray(_DER)
        for _ in range(data.draw(st.integers(0, 3))):
            der[data.draw(st.integers(0, len(der) - 1))] = data.draw(st.integers(0, 255))
        armored = base64.encodebytes(bytes(der))
        csr = signing_request(PEM % armored, KUBELET)
        for field in data.draw(
            st.sets(st.sampled_from(["usages", "username", "groups", "extra", "signerName"]))
        ):
            csr["spec"][field] = data.draw(json)
        csr["metadata"], csr["status"] = data.draw(json), data.draw(json)
        is_decided(csr)
        request = recognize(csr)
        if request is not None:
            Cluster(data.draw(st.just(node()) | st.none()), POD).decide(request)

    def test_decided(self):
        """Requests that are approved, denied or failed are ignored."""
        for status, decided in (
            (None, False),
            ({}, False),
            ({"conditions": None}, False),
            ({"conditions": [{"type": "Strange"}, "nonsense"]}, False),
            ({"conditions": [{"type": "Approved", "status": "True"}]}, True),
            ({"conditions": [{"type": "Denied"}]}, True),
            ({"conditions": [{"type": "Failed"}]}, True),
        ):
            self.assertIs(decided, is_decided({"status": status}), status)


_DER = x509.load_pem_x509_csr(request_pem()).public_bytes(serialization.Encoding.DER)
