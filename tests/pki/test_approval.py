"""Approval of the tunnel's certificate requests in a cluster: their form, and those of servers."""

from __future__ import annotations

import base64
from ipaddress import ip_address, ip_network

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import AttributeOID

from tests.certificates import common_name
from tests.pki.signing_requests import (
    AGENT,
    CLIENT_USAGES,
    EDGE_1,
    KUBELET,
    PEM,
    SERVER,
    World,
    node,
    request_pem,
    signing_request,
    template_request,
    with_bits,
    with_two_attributes,
)
from yurttunnel.pki.approval_decision import Reason
from yurttunnel.pki.certificate_template import proxy_client_template, serving_template


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
        directory = x509.DirectoryName(common_name("ab"))
        signed = x509.load_pem_x509_csr(request_pem(names=[*EDGE_1, directory]))
        der = with_bits(signed.public_bytes(serialization.Encoding.DER), b"ab")
        self.does_not_approve_pem(Reason.MALFORMED, PEM % base64.encodebytes(der), "malformed")

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
        self.approves(self.serving())
        self.assertEqual([], self.read)
