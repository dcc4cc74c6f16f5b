"""Certificate requests of the tunnel in a cluster, and a world in which they are decided."""

from __future__ import annotations

import base64

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.kube.errors import NotFound
from yurttunnel.pki.approval import decide
from yurttunnel.pki.approval_decision import Facts
from yurttunnel.pki.approval_requests import recognize
from yurttunnel.pki.cluster_identity import agent_template
from yurttunnel.pki.credentials import new_key
from yurttunnel.pki.identity import parse_identifiers

NAMESPACE = "kube-system"
AGENT = "system:serviceaccount:kube-system:yurt-tunnel-agent"
SERVER = "system:serviceaccount:kube-system:yurt-tunnel-server"
KUBELET = "system:node:edge-1"
BOUND_TO_NODE = {
    "authentication.kubernetes.io/pod-name": ["yurt-tunnel-agent-x7x7x"],
    "authentication.kubernetes.io/pod-uid": ["pod-uid"],
    "authentication.kubernetes.io/node-name": ["edge-1"],
    "authentication.kubernetes.io/node-uid": ["node-uid"],
}
BOUND_TO_POD = {
    "authentication.kubernetes.io/pod-name": ["yurt-tunnel-agent-x7x7x"],
    "authentication.kubernetes.io/pod-uid": ["pod-uid"],
}
POD = {
    "metadata": {"name": "yurt-tunnel-agent-x7x7x", "uid": "pod-uid"},
    "spec": {"nodeName": "edge-1"},
}
EDGE_1 = (x509.DNSName("edge-1"),)
CLIENT_USAGES = ["digital signature", "key encipherment", "client auth"]


def node(name="edge-1", *addresses):
    """Create a node's object with addresses, each of a type and a text."""
    addresses = addresses or (("InternalIP", "192.0.2.7"), ("Hostname", "edge-1.example"))
    return {
        "metadata": {"name": name, "uid": "node-uid"},
        "status": {"addresses": [{"type": kind, "address": text} for kind, text in addresses]},
    }


def signing_request(pem, requester, signer="kubernetes.io/kube-apiserver-client", **spec):
    """Create the object of the API."""
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": "csr-1"},
        "spec": {
            "request": base64.b64encode(pem).decode(),
            "signerName": signer,
            "usages": CLIENT_USAGES,
            "username": requester,
            "groups": ["system:nodes", "system:authenticated"],
            **spec,
        },
    }


def template_request(template, requester, **spec):
    """Create a request of an entitled requester."""
    return signing_request(
        template.request(new_key()),
        requester,
        **{"signer": template.signer, "usages": template.usages, **spec},
    )


def agent_request(requester=KUBELET, text="host=edge-1&ipv4=192.0.2.7", name="edge-1", **spec):
    """Create an agent's request."""
    return template_request(agent_template(name, parse_identifiers(text)), requester, **spec)


def request_pem(
    subject=(("O", "openyurt:yurttunnel"), ("CN", "tunnel-agent:edge-1")),
    names=EDGE_1,
    key=None,
    extensions=(),
    attributes=(),
):
    """Create a request in PEM form that the tunnel would not create."""
    kinds = {
        "O": NameOID.ORGANIZATION_NAME,
        "CN": NameOID.COMMON_NAME,
        "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    }
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(kinds[kind], value) for kind, value in subject])
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    for oid, value in attributes:
        builder = builder.add_attribute(oid, value)
    request = builder.sign(key or new_key(), hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def with_two_attributes():
    """Create a request with edge-1 in one attribute and edge-2 in another."""
    key = new_key()

    def information(names):
        return x509.load_pem_x509_csr(request_pem(names=names, key=key)).tbs_certrequest_bytes

    # With one header of two bytes and one of three, according to the lengths.
    rest = information(())[3:-2]
    attributes = [
        information([x509.DNSName(host)])[3 + len(rest) + 2 :] for host in ("edge-1", "edge-2")
    ]
    signed = tlv(0x30, rest + tlv(0xA0, b"".join(attributes)))
    signature = key.sign(signed, ec.ECDSA(hashes.SHA256()))
    algorithm = bytes.fromhex("300a06082a8648ce3d040302")
    der = tlv(0x30, signed + algorithm + tlv(0x03, b"\0" + signature))
    armored = base64.encodebytes(der)
    return b"-----BEGIN CERTIFICATE REQUEST-----\n%b-----END CERTIFICATE REQUEST-----\n" % armored


def with_bits(der, text):
    """Encode a BIT STRING of the UTF8String ``text``."""
    whole = tlv(0x0C, text)
    assert whole in der
    return der.replace(whole, tlv(0x03, b"\0" + text[1:]))


def tlv(tag, content):
    """Encode a DER element."""
    length = len(content)
    if length < 0x80:
        return bytes([tag, length]) + content
    size = (length.bit_length() + 7) // 8
    return bytes([tag, 0x80 | size]) + length.to_bytes(size, "big") + content


class Cluster:
    """A client of the API; ``others`` are names of other nodes, ``service`` is that of the API.

    ``read`` has the plural and the name of each object that was read.
    """

    def __init__(self, known=None, pod=None, others=(), may_join=False, service=None):
        nodes = [*map(node, others), *filter(None, [known])]
        self._objects = {("nodes", each["metadata"]["name"]): each for each in nodes}
        if pod is not None:
            self._objects["pods", pod["metadata"]["name"]] = pod
        if service is not None:
            self._objects["services", "kubernetes"] = {"spec": {"clusterIPs": [service]}}
        self._may_join = may_join
        self.read = []

    async def get(self, resource, name, namespace=None):
        """Read an object."""
        key = (resource.plural, name)
        self.read.append(key)
        if key not in self._objects:
            raise NotFound(404, "NotFound", name)
        return self._objects[key]

    async def create(self, resource, body):
        """Review whether the requester may become a node."""
        self.read.append((resource.plural, None))
        return {"status": {"allowed": self._may_join}}

    def decide(self, request, namespace=NAMESPACE):
        """Return the decision about a request."""
        decided = Deferred.fromCoroutine(decide(request, Facts(self, namespace)))
        return SynchronousTestCase().successResultOf(decided)


class World(SynchronousTestCase):
    """Common assertions."""

    def decide(self, csr, node=None, namespace=NAMESPACE, **cluster):
        """Recognize a request and decide about it; ``read`` has the names of what was read."""
        request = recognize(csr)
        self.assertIsNotNone(request)
        known = Cluster(node, **cluster)
        decision = known.decide(request, namespace)
        self.read = [name for _, name in known.read]
        return decision

    def approves(self, csr, *words, **facts):
        """Assert that a request is approved, with ``words`` in the reason."""
        decision = self.decide(csr, **facts)
        self.assertTrue(decision.approved, decision)
        for each in words:
            self.assertIn(each, decision.message)

    def does_not_approve(self, reason, csr, *words, **facts):
        """Assert that a request is left alone for ``reason``, in one line with ``words``."""
        decision = self.decide(csr, **facts)
        self.assertEqual(reason, decision.reason, decision)
        self.assertFalse(decision.approved)
        self.assertTrue(decision.message.isprintable(), decision)
        for each in words:
            self.assertIn(each, decision.message)


PEM = b"-----BEGIN CERTIFICATE REQUEST-----\n%b-----END CERTIFICATE REQUEST-----\n"
