"""Approval of the tunnel's certificate requests in a cluster."""

from __future__ import annotations

import base64
import time
from ipaddress import ip_address, ip_network

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import AttributeOID, NameOID
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.cluster.nodes import MAX_ADDRESSES
from yurttunnel.pki.agent_template import agent_template
from yurttunnel.pki.approval import decide, lookups
from yurttunnel.pki.approval_decision import MAX_FURTHER_NAMES, Facts, Lookups, Reason
from yurttunnel.pki.approval_requests import (
    MAX_REQUEST,
    Kind,
    is_decided,
    is_for_tunnel,
    recognize,
)
from yurttunnel.pki.certificate_template import (
    proxy_client_template,
    serving_template,
)
from yurttunnel.pki.credentials import new_key
from yurttunnel.pki.identity import Identifiers, parse_identifiers

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


class World(SynchronousTestCase):
    """Common assertions."""

    def decide(self, csr, node=None, pod=None, namespace=NAMESPACE, others=()):
        """Recognize a request and decide about it; ``others`` are names of other nodes."""
        request = recognize(csr)
        self.assertIsNotNone(request)
        looked_up = lookups(request, namespace).further_names
        others = frozenset(others).intersection(looked_up)
        return decide(request, Facts(namespace, node, pod, others))

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
        texts.append(_PEM % base64.encodebytes(version))
        texts.append(_PEM % base64.encodebytes(with_bits(_DER, b"tunnel-agent:edge-1")))
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
        csr = signing_request(_PEM % armored, KUBELET)
        for field in data.draw(
            st.sets(st.sampled_from(["usages", "username", "groups", "extra", "signerName"]))
        ):
            csr["spec"][field] = data.draw(json)
        csr["metadata"], csr["status"] = data.draw(json), data.draw(json)
        is_decided(csr)
        request = recognize(csr)
        if request is not None:
            lookups(request, NAMESPACE)
            facts = Facts(NAMESPACE, data.draw(st.just(node()) | st.none()), POD)
            decide(request, facts)

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


_PEM = b"-----BEGIN CERTIFICATE REQUEST-----\n%b-----END CERTIFICATE REQUEST-----\n"
_DER = x509.load_pem_x509_csr(request_pem()).public_bytes(serialization.Encoding.DER)


class FormTests(World):
    """The form that every request needs."""

    def does_not_approve_pem(self, reason, pem, *words, **spec):
        """Assert that an agent's request, otherwise entitled, is left alone."""
        self.does_not_approve(reason, signing_request(pem, KUBELET, **spec), *words, node=node())

    def test_good(self):
        """The request that the other tests modify is approved."""
        self.approves(signing_request(request_pem(), KUBELET), node=node())

    def test_subject(self):
        """A subject has one common name, one organization and nothing else."""
        organization, name = ("O", "openyurt:yurttunnel"), ("CN", "tunnel-agent:edge-1")
        for subject, words in (
            ([organization, name, ("CN", "admin")], "2 common names"),
            ([organization, ("CN", "admin"), name], "2 common names"),
            ([organization, name, name], "2 common names"),
            ([organization, ("O", "system:masters"), name], "2 organizations"),
            ([name], "0 organizations"),
            ([organization, ("OU", "x"), name], "2.5.4.11"),
        ):
            self.does_not_approve_pem(Reason.MALFORMED, request_pem(subject), words)

    def test_organization(self):
        """The organization is that of the certificate's kind."""
        for organization in ("system:masters", "system:nodes", "openyurt:yurthub", "a\nb"):
            pem = request_pem([("O", organization), ("CN", "tunnel-agent:edge-1")])
            self.does_not_approve_pem(
                Reason.ORGANIZATION, pem, repr(organization), "that of", "'openyurt:yurttunnel'"
            )

    def test_usages(self):
        """Usages are a set, in which the one for RSA key exchange is optional."""
        for usages in (
            ["client auth", "digital signature"],
            ["client auth", "key encipherment", "digital signature", "client auth"],
        ):
            self.approves(signing_request(request_pem(), KUBELET, usages=usages), node=node())
        for usages in (
            [],
            None,
            ["client auth"],
            ["digital signature", "key encipherment"],
            [*CLIENT_USAGES, "server auth"],
            [*CLIENT_USAGES, "cert sign"],
            ["any"],
        ):
            self.does_not_approve_pem(Reason.USAGES, request_pem(), "'client auth'", usages=usages)

    def test_keys(self):
        """Weak keys and keys of other types are left alone."""
        for key in (
            ec.generate_private_key(ec.SECP224R1()),
            rsa.generate_private_key(65537, 1024),
        ):
            self.does_not_approve_pem(Reason.KEY, request_pem(key=key), "too weak", "P-256")
        for key in (
            ec.generate_private_key(ec.SECP384R1()),
            rsa.generate_private_key(65537, 2048),
        ):
            self.approves(signing_request(request_pem(key=key), KUBELET), node=node())

    def test_signature(self):
        """A request with an invalid signature is left alone."""
        signed = x509.load_pem_x509_csr(request_pem())
        der = bytearray(signed.public_bytes(serialization.Encoding.DER))
        der[der.index(b"edge-1")] = ord("f")
        forged = x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)
        csr = signing_request(forged, "system:node:fdge-1")
        self.does_not_approve(Reason.KEY, csr, "not signed by the key")

    def test_extensions(self):
        """Extensions except alternative names are left alone, since other signers may copy them."""
        authority = x509.BasicConstraints(ca=True, path_length=None)
        self.does_not_approve_pem(
            Reason.MALFORMED, request_pem(extensions=[authority]), "2.5.29.19"
        )

    def test_networks(self):
        """A network is not accepted as an address, in any form."""
        network = x509.IPAddress(ip_network("192.0.2.0/24"))
        self.does_not_approve_pem(
            Reason.MALFORMED, request_pem(names=[*EDGE_1, network]), "192.0.2.0/24"
        )

    def test_attributes(self):
        """A second attribute is left alone, since other parsers might find more names in it."""
        other = x509.ObjectIdentifier("1.2.840.113549.1.9.14")
        for oid in (AttributeOID.CHALLENGE_PASSWORD, other):
            pem = request_pem(attributes=[(oid, b"x")])
            self.does_not_approve_pem(Reason.MALFORMED, pem, "attributes")
        pem = with_two_attributes()
        self.assertTrue(x509.load_pem_x509_csr(pem).is_signature_valid)
        self.does_not_approve_pem(Reason.MALFORMED, pem, "attributes other than one")

    def test_names_of_bits(self):
        """A name that is not text is malformed."""
        directory = x509.DirectoryName(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ab")]))
        signed = x509.load_pem_x509_csr(request_pem(names=[*EDGE_1, directory]))
        der = with_bits(signed.public_bytes(serialization.Encoding.DER), b"ab")
        self.does_not_approve_pem(Reason.MALFORMED, _PEM % base64.encodebytes(der), "malformed")

    def test_kinds_of_names(self):
        """Alternative names are host names and addresses."""
        for name in (
            x509.RFC822Name("admin@example.com"),
            x509.UniformResourceIdentifier("yurttunnel:cidr=10.0.0.0/8"),
            x509.UniformResourceIdentifier("yurttunnel:default-route=true"),
            x509.DirectoryName(x509.Name([])),
            x509.DNSName("edge 1"),
            x509.DNSName("edge-1\x00.example"),
            x509.DNSName("a" * 64),
            x509.DNSName(".".join(["a" * 60] * 5)),
            x509.DNSName(""),
        ):
            pem = request_pem(names=[x509.DNSName("edge-1"), name])
            self.does_not_approve_pem(Reason.MALFORMED, pem, "only host names and addresses")


class ServerTests(World):
    """The two certificates of servers."""

    def serving(self, requester=SERVER, **spec):
        """Create a request for the serving certificate."""
        template = serving_template(
            ["x-tunnel-server-svc.kube-system.svc", "LB-7.Example.com"],
            [ip_address("192.0.2.1"), ip_address("2001:db8::1")],
        )
        return template_request(template, requester, **spec)

    def test_entitled(self):
        """The service account of servers gets both."""
        self.approves(self.serving(), "serving certificate", SERVER)
        self.approves(template_request(proxy_client_template(), SERVER), "for kubelets", SERVER)

    def test_others(self):
        """Agents, nodes and accounts of other namespaces get neither."""
        for requester in (
            AGENT,
            KUBELET,
            "system:node:tunnel-server",
            "system:serviceaccount:default:another",
            "system:serviceaccount:yurt-tunnel-server",
            "default:yurt-tunnel-server",
            "tunnel-proxy-client",
            "kubernetes-admin",
            "",
            "evil\n\x1b[2Jname",
        ):
            for csr in (
                self.serving(requester),
                template_request(proxy_client_template(), requester),
            ):
                self.does_not_approve(
                    Reason.REQUESTER, csr, ascii(requester), f"only {SERVER} may have"
                )

    def test_other_namespace(self):
        """The service account is the one in the tunnel's namespace."""
        account = "system:serviceaccount:tunnel:yurt-tunnel-server"
        self.approves(self.serving(account), namespace="tunnel")
        self.does_not_approve(
            Reason.OTHER_INSTALLATION, self.serving(), account, namespace="tunnel"
        )

    def test_other_installation(self):
        """Requests of servers in another namespace are left alone, and not alarming."""
        account = "system:serviceaccount:other:yurt-tunnel-server"
        for csr in (self.serving(account), template_request(proxy_client_template(), account)):
            self.does_not_approve(
                Reason.OTHER_INSTALLATION, csr, "another installation", account, SERVER
            )
            self.assertFalse(self.decide(csr).is_alarming)
            self.assertFalse(self.decide(csr).may_change)
        self.assertTrue(self.decide(self.serving(KUBELET)).is_alarming)

    def test_names(self):
        """The serving certificate needs names, and the other one must have none."""
        nameless = template_request(serving_template(), SERVER)
        self.does_not_approve(Reason.NAMES, nameless, "contains no host name and no address")
        pem = request_pem(
            [("O", "openyurt:yurttunnel"), ("CN", "tunnel-proxy-client")],
            [x509.DNSName("edge-1")],
        )
        self.does_not_approve(Reason.NAMES, signing_request(pem, SERVER), "'edge-1'", "a node")

    def test_form(self):
        """Organization and usages are those of serving certificates."""
        self.does_not_approve(Reason.USAGES, self.serving(usages=CLIENT_USAGES), "'server auth'")
        pem = request_pem([("O", "openyurt:yurttunnel"), ("CN", "system:node:tunnel-server")])
        csr = signing_request(pem, SERVER, "kubernetes.io/kubelet-serving")
        self.does_not_approve(Reason.ORGANIZATION, csr, "'system:nodes'")

    def test_lookups(self):
        """They need no lookups."""
        self.assertEqual(Lookups(), lookups(recognize(self.serving()), NAMESPACE))


class AgentTests(World):
    """The certificate of a node."""

    def test_kubelet(self):
        """It is approved for the node's own kubelet."""
        self.approves(agent_request(), "agent of node edge-1", KUBELET, node=node())

    def test_many_addresses(self):
        """Only the first addresses of a node count, however many it reports."""
        many = [("InternalIP", f"10.0.0.{number}") for number in range(1, MAX_ADDRESSES)]
        own = ("InternalIP", "192.0.2.7")
        self.approves(agent_request(), node=node("edge-1", *many, own))
        self.does_not_approve(
            Reason.NAMES, agent_request(), "192.0.2.7", node=node("edge-1", *many, many[0], own)
        )

    def test_other_kubelet(self):
        """It is left alone for another node's kubelet, and the message names both."""
        self.does_not_approve(
            Reason.REQUESTER,
            agent_request("system:node:edge-2"),
            "'system:node:edge-2' requests the certificate of node edge-1",
            node=node(),
        )

    def test_kubelet_without_group(self):
        """It is left alone for a user with a node's name but not its group."""
        self.does_not_approve(
            Reason.REQUESTER, agent_request(groups=["system:authenticated"]), node=node()
        )

    def test_account_on_node(self):
        """It is approved for the agent's account with a token bound to the node."""
        csr = agent_request(AGENT, extra=BOUND_TO_NODE)
        self.assertEqual(Lookups("edge-1"), lookups(recognize(csr), NAMESPACE))
        self.approves(csr, AGENT, node=node())

    def test_account_in_pod(self):
        """If the token does not name the node, the pod's node counts."""
        csr = agent_request(AGENT, extra=BOUND_TO_POD)
        desired = lookups(recognize(csr), NAMESPACE)
        self.assertEqual(Lookups("edge-1", "yurt-tunnel-agent-x7x7x"), desired)
        self.approves(csr, AGENT, node=node(), pod=POD)

    def test_account_on_other_node(self):
        """It is left alone for a token bound to another node, or to a pod there."""
        extra = {**BOUND_TO_NODE, "authentication.kubernetes.io/node-name": ["edge-2"]}
        elsewhere = {**POD, "spec": {"nodeName": "edge-2"}}
        words = f"{AGENT} on node edge-2 requests the certificate of node edge-1"
        for csr, pod in (
            (agent_request(AGENT, extra=extra), None),
            (agent_request(AGENT, extra=extra), POD),
            (agent_request(AGENT, extra=BOUND_TO_POD), elsewhere),
        ):
            self.does_not_approve(Reason.REQUESTER, csr, words, node=node(), pod=pod)

    def test_unbound(self):
        """It is left alone for a token that is not bound."""
        name = "authentication.kubernetes.io/pod-name"
        for extra in (None, {}, {name: []}, {name: [""]}, {name: ["a", "b"]}, {name: "a"}):
            csr = agent_request(AGENT, extra=extra)
            self.assertEqual(Lookups("edge-1"), lookups(recognize(csr), NAMESPACE))
            self.does_not_approve(
                Reason.UNBOUND_TOKEN, csr, "not bound to a pod", node=node(), pod=POD
            )

    def test_pod_is_gone(self):
        """A pod that is gone, was replaced, or is not scheduled does not identify the node."""
        csr = agent_request(AGENT, extra=BOUND_TO_POD)
        self.does_not_approve(
            Reason.UNBOUND_TOKEN, csr, "is not in kube-system any more", node=node()
        )
        other = {**POD, "metadata": {**POD["metadata"], "uid": "another"}}
        self.does_not_approve(Reason.UNBOUND_TOKEN, csr, "that was deleted", node=node(), pod=other)
        for spec in (None, {}, {"nodeName": ""}, {"nodeName": 5}):
            nowhere = {**POD, "spec": spec}
            self.does_not_approve(
                Reason.UNBOUND_TOKEN, csr, "is not scheduled", node=node(), pod=nowhere
            )

    def test_node_was_replaced(self):
        """A token bound to a deleted node is not valid for a new node of the same name."""
        extra = {**BOUND_TO_NODE, "authentication.kubernetes.io/node-uid": ["another"]}
        csr = agent_request(AGENT, extra=extra)
        self.does_not_approve(
            Reason.UNBOUND_TOKEN, csr, "node edge-1 that was deleted", node=node()
        )

    def test_other_accounts(self):
        """It is left alone for all other accounts, whatever their tokens are bound to."""
        for requester in (
            SERVER,
            "system:serviceaccount:default:yurt-tunnel-agent",
            "yurt-tunnel-agent",
        ):
            csr = agent_request(requester, extra=BOUND_TO_NODE)
            self.does_not_approve(Reason.REQUESTER, csr, ascii(requester), node=node())

    def test_unknown_node(self):
        """A request for an unknown node may be approved later."""
        self.does_not_approve(
            Reason.UNKNOWN_NODE, agent_request(), "no node edge-1", "checked again"
        )

    def test_names_of_node(self):
        """All names and addresses in the node's object may be requested."""
        found = node(
            "edge-1",
            ("InternalIP", "192.0.2.7"),
            ("InternalIP", "2001:db8::7"),
            ("ExternalIP", "198.51.100.7"),
            ("Hostname", "Edge-1.Example"),
            ("InternalDNS", "edge-1.internal"),
        )
        text = (
            "host=edge-1&host=edge-1.example&host=edge-1.internal"
            "&ipv4=192.0.2.7&ipv6=2001:db8::7&ipv4=198.51.100.7"
        )
        self.approves(agent_request(text=text), node=found)

    def test_foreign_names(self):
        """Other names and addresses are left alone, and the message lists them."""
        for item in ("host=edge-2", "host=kubernetes", "ipv4=192.0.2.8", "ipv6=2001:db8::8"):
            csr = agent_request(text=f"host=edge-1&{item}")
            value = item.partition("=")[2]
            self.does_not_approve(
                Reason.NAMES, csr, f"'{value}' does not belong to node edge-1", node=node()
            )

    def test_address_has_changed(self):
        """For a former address of the node, the message tells how the agent gets the new one."""
        self.does_not_approve(
            Reason.NAMES,
            agent_request(text="host=edge-1&ipv4=192.0.2.8"),
            "'192.0.2.8' does not belong to node edge-1",
            "restart the agent's pod",
            "--node-ip",
            node=node(),
        )
        decision = self.decide(agent_request(text="host=edge-1&ipv4=192.0.2.8"), node=node())
        self.assertNotIn("--agent-identifiers", decision.message)
        decision = self.decide(agent_request(text="host=edge-1&host=camera"), node=node())
        self.assertIn("Leave 'camera' out of the agent's --agent-identifiers", decision.message)
        self.assertNotIn("--node-ip", decision.message)

    def test_name_of_other_node(self):
        """The name of another node is left alone, even if the node reports it."""
        found = node("edge-1", ("InternalIP", "192.0.2.7"), ("Hostname", "edge-2"))
        csr = agent_request(text="host=edge-1&host=edge-2")
        self.assertEqual(("edge-2",), lookups(recognize(csr), NAMESPACE).further_names)
        words = ("'edge-2' is the name of another node", "node edge-1 cannot have it")
        self.does_not_approve(Reason.OTHER_NODE, csr, *words, node=found, others=["edge-2"])
        self.assertTrue(self.decide(csr, node=found, others=["edge-2"]).may_change)
        self.approves(csr, node=found)

    def test_own_name_is_not_another(self):
        """A node's own name is not looked up as another node's."""
        self.assertEqual((), lookups(recognize(agent_request()), NAMESPACE).further_names)
        self.approves(agent_request(), node=node(), others=["edge-1"])

    def test_many_names(self):
        """A request with more names than the lookup limit is left alone."""
        for count in (MAX_FURTHER_NAMES, MAX_FURTHER_NAMES + 1):
            hosts = [f"h{number}.example" for number in range(count)]
            found = node("edge-1", *(("Hostname", host) for host in hosts))
            csr = agent_request(text="&".join(f"host={host}" for host in ["edge-1", *hosts]))
            looked_up = lookups(recognize(csr), NAMESPACE).further_names
            if count == MAX_FURTHER_NAMES:
                self.assertEqual(tuple(hosts), looked_up)
                self.approves(csr, node=found)
            else:
                self.assertEqual((), looked_up)
                self.does_not_approve(Reason.NAMES, csr, f"{count} host names", node=found)

    def test_strange_names(self):
        """A name that no node's certificate can have is left alone, even if the node reports it."""
        for host in ("*.example", "edge_2"):
            found = node("edge-1", ("Hostname", host))
            csr = signing_request(request_pem(names=[*EDGE_1, x509.DNSName(host)]), KUBELET)
            self.assertEqual((), lookups(recognize(csr), NAMESPACE).further_names)
            self.does_not_approve(
                Reason.NAMES, csr, f"'{host}' does not belong to node", node=found
            )

    def test_networks(self):
        """Networks and the default route are left alone, since they cover other nodes."""
        for item in ("cidr=10.0.0.0/8", "default-route=true"):
            self.does_not_approve(
                Reason.MALFORMED, agent_request(text=f"host=edge-1&{item}"), node=node()
            )

    def test_malformed_node(self):
        """A malformed node object has only the node's name."""
        for status in (None, [], {"addresses": "x"}, {"addresses": [None, {"address": 5}]}):
            found = {"metadata": {"name": "edge-1"}, "status": status}
            self.approves(agent_request(text="host=edge-1"), node=found)
            self.does_not_approve(Reason.NAMES, agent_request(), "'192.0.2.7'", node=found)

    def test_name_and_common_name(self):
        """The common name has to be that of exactly one node."""
        for common_name, hosts in (
            ("tunnel-agent:edge-1", ["edge-2"]),
            ("tunnel-agent:edge-1", []),
            ("tunnel-agent:", ["edge-1"]),
            ("tunnel-agent:EDGE-1", ["EDGE-1"]),
        ):
            pem = request_pem(
                [("O", "openyurt:yurttunnel"), ("CN", common_name)],
                [x509.DNSName(host) for host in hosts],
            )
            csr = signing_request(pem, KUBELET)
            self.assertEqual(Lookups(), lookups(recognize(csr), NAMESPACE))
            self.does_not_approve(Reason.NAMES, csr, node=node())

    def test_long_name(self):
        """A node whose name is too long for a common name gets its certificate, too."""
        name = "edge-1." + "x" * 60 + ".example.com"
        template = agent_template(name, Identifiers(frozenset({name})))
        csr = template_request(template, f"system:node:{name}")
        self.assertEqual(Lookups(name), lookups(recognize(csr), NAMESPACE))
        self.approves(csr, name, node=node(name))
