"""CertificateSigningRequests: validation, approval and signing."""

from __future__ import annotations

import base64
import functools

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from tests.apiserver.bootstrap_roles import rule
from tests.apiserver.kinds import CERTIFICATE_SIGNING_REQUESTS
from tests.apiserver.support import ApiTestCase, kubelet
from tests.yurtlab.api.support import MERGE, STRATEGIC, certificate, user
from yurttunnel.pki.credentials import new_key

PATH = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CLIENT = "kubernetes.io/kube-apiserver-client"
SERVING = "kubernetes.io/kubelet-serving"
BOB = user("bob", "team")


@functools.cache
def pem(name="node-1", organizations=("openyurt:yurttunnel",)):
    """Return a request in PEM, in base64."""
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    attributes += [x509.NameAttribute(NameOID.ORGANIZATION_NAME, one) for one in organizations]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(attributes))
    return encoded(builder.sign(new_key(), hashes.SHA256()).public_bytes(Encoding.PEM))


def encoded(data):
    """Return bytes in base64, as in JSON."""
    return base64.b64encode(data).decode()


def csr(name="csr", **spec):
    """Return a CertificateSigningRequest."""
    usages = ["digital signature", "client auth"]
    spec = {"request": pem(), "signerName": CLIENT, "usages": usages, **spec}
    return {"metadata": {"name": name}, "spec": spec}


def condition(kind="Approved", **fields):
    """Return a condition."""
    return {"type": kind, "status": "True", "reason": "Test", **fields}


class RequestTestCase(ApiTestCase):
    """A test case that creates and approves requests."""

    def setUp(self):
        """Grant bob all permissions for requests, except to approve and to sign."""
        super().setUp()
        everything = rule(
            "*", "certificates.k8s.io", "certificatesigningrequests", "*/approval", "*/status"
        )
        self.grant("bob", everything)

    def refused(self, **spec):
        """Return the error message of an invalid request."""
        answer = self.call("POST", PATH, csr(**spec))
        self.assertEqual((422, "Invalid"), (answer[0], answer[1]["reason"]), answer)
        return answer[1]["message"].removeprefix(
            'CertificateSigningRequest.certificates.k8s.io "csr" is invalid: '
        )

    def put(self, subresource, status, known=True, **options):
        """Write a subresource; return status and response."""
        _, current = self.call("GET", f"{PATH}/csr")
        body = {**current, "status": status}
        return self.call("PUT", f"{PATH}/csr/{subresource}", body, known=known, **options)

    def causes(self, answer):
        """Return the causes of an error."""
        status, content = answer
        self.assertEqual((422, "Invalid"), (status, content.get("reason")), content)
        return [f"{one['field']}: {one['message']}" for one in content["details"]["causes"]]


class CreateTests(RequestTestCase):
    """Creation."""

    def test_requester(self):
        """The API sets the requester, whatever the body contains, and removes a status."""
        body = csr(username="eve", uid="1", groups=["system:masters"], extra={"k": ["v"]})
        body["status"] = {"conditions": [condition()], "certificate": "eA=="}
        spec = self.create(body, PATH, known=BOB)["spec"]
        self.assertEqual("bob", spec["username"])
        self.assertEqual(["team", "system:authenticated"], spec["groups"])
        self.assertEqual(["authentication.kubernetes.io/credential-id"], list(spec["extra"]))
        self.assertNotIn("uid", spec)
        self.assertEqual({}, self.store.get(CERTIFICATE_SIGNING_REQUESTS, None, "csr")["status"])

    def test_generated_name(self):
        """A name can be generated."""
        body = {**csr(), "metadata": {"generateName": "csr-"}}
        self.assertRegex(self.create(body, PATH)["metadata"]["name"], "^csr-.{5}$")

    def test_request(self):
        """The request is PKCS #10 in PEM, signed by its key."""
        for data in (b"", b"x", b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"):
            self.assertIn(
                "PEM block type must be CERTIFICATE REQUEST", self.refused(request=encoded(data))
            )
        good = base64.b64decode(pem())
        for bad in (b"A", b"*"):
            changed = good[:-60] + (bad * 3) + good[-57:]
            self.assertIn("spec.request: Invalid value", self.refused(request=encoded(changed)))

    def test_usages(self):
        """Usages are required, must be known, and must not be repeated."""
        self.assertEqual("spec.usages: Required value", self.refused(usages=[]))
        self.assertIn(
            'spec.usages[1]: Unsupported value: "x": supported values: "any", "cert sign"',
            self.refused(usages=["any", "x"]),
        )
        self.assertEqual(
            'spec.usages[1]: Duplicate value: "any"', self.refused(usages=["any", "any"])
        )

    def test_signer(self):
        """The signer is a domain and a path."""
        for name, problem in (
            ("", "Required value"),
            ("kubernetes.io/legacy-unknown", "the legacy signerName is not allowed"),
            ("x", "must be a fully qualified domain and path of the form"),
            ("a.b/c/d", "must be a fully qualified domain and path of the form"),
            ("a/c", "should be a domain with at least two segments separated by dots"),
            ("A.b/c", "a lowercase RFC 1123 subdomain"),
            ("a.b/C", "a lowercase RFC 1123 subdomain"),
            (f"a.b/{'c' * 600}", "may not be more than 571 bytes"),
        ):
            self.assertIn(problem, self.refused(signerName=name))

    def test_expiration(self):
        """The minimum requested duration is ten minutes."""
        self.assertEqual(
            "spec.expirationSeconds: Invalid value: 599:"
            " may not specify a duration less than 600 seconds (10 minutes)",
            self.refused(expirationSeconds=599),
        )
        self.create(csr(expirationSeconds=600), PATH)

    def test_masters(self):
        """Nobody can request membership of system:masters."""
        body = csr(request=pem("a", ("team", "system:masters")))
        message = (
            'certificatesigningrequests.certificates.k8s.io "csr" is forbidden: use of'
            " kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"
        )
        self.assert_error(self.call("POST", PATH, body), 403, "Forbidden", message)
        self.create(csr(request=pem("a", ("system:masters",)), signerName="a.b/c"), PATH)

    def test_kubelets(self):
        """A kubelet can request only certificates of its own node from the signers for kubelets."""
        spec = {"signerName": SERVING, "usages": ["digital signature", "server auth"]}
        for node, expected in (("edge-1", 201), ("edge-2", 403)):
            request = pem(f"system:node:{node}", ("system:nodes",))
            body = csr(f"csr-{node}", request=request, **spec)
            status, answer = self.call("POST", PATH, body, known=kubelet())
            self.assertEqual(expected, status)
        self.assertIn("can only create a node CSR with CN=system:node:edge-1", answer["message"])
        self.assertEqual(201, self.call("POST", PATH, csr(), known=kubelet())[0])

    def test_unchangeable(self):
        """The specification is immutable."""
        made = self.create(csr(), PATH)
        changed = csr(signerName=SERVING, username="eve")
        status, answer = self.call("PUT", f"{PATH}/csr", changed)
        self.assertEqual((200, made["spec"]), (status, answer["spec"]))
        patch = {"spec": {"username": "eve"}, "status": {"conditions": [condition()]}}
        _, answer = self.call("PATCH", f"{PATH}/csr", patch, media_type=MERGE)
        self.assertEqual((made["spec"], {}), (answer["spec"], answer["status"]))

    def test_selected_by_signer(self):
        """A field selector can select the requests for one signer."""
        self.create(csr("a"), PATH)
        self.create(csr("b", signerName="a.b/c"), PATH)
        _, found = self.call("GET", f"{PATH}?fieldSelector=spec.signerName%3Da.b/c")
        self.assertEqual(["b"], [one["metadata"]["name"] for one in found["items"]])


class ApprovalTests(RequestTestCase):
    """Approval."""

    def setUp(self):
        """Ask for a certificate."""
        super().setUp()
        self.create(csr(), PATH)

    def test_approved(self):
        """A user with permission to approve sets a condition, whose times are filled in."""
        self.grant("eve", rule("update", "certificates.k8s.io", "*/approval"))
        _, answer = self.put("approval", {"conditions": [condition()], "certificate": "eA=="})
        now = "2025-06-15T15:06:40Z"
        self.assertEqual(
            {"conditions": [condition(lastUpdateTime=now, lastTransitionTime=now)]},
            answer["status"],
        )

    def test_patched(self):
        """An approval may be a patch, and the subresource can be read."""
        patch = {"status": {"conditions": [condition("Denied")]}}
        status, _ = self.call("PATCH", f"{PATH}/csr/approval", patch, media_type=STRATEGIC)
        self.assertEqual(200, status)
        _, answer = self.call("GET", f"{PATH}/csr/approval")
        self.assertEqual("Denied", answer["status"]["conditions"][0]["type"])

    def test_permission(self):
        """Approval requires the permission for the signer, or for all signers of its domain."""
        status = {"conditions": [condition()]}
        message = (
            'certificatesigningrequests.certificates.k8s.io "csr" is forbidden: user not permitted'
            ' to approve requests with signerName "kubernetes.io/kube-apiserver-client"'
        )
        answer = self.put("approval", status, BOB)
        self.assert_error(answer, 403, "Forbidden", message)
        self.assertEqual({}, self.store.get(CERTIFICATE_SIGNING_REQUESTS, None, "csr")["status"])
        approve = {
            **rule("approve", "certificates.k8s.io", "signers"),
            "resourceNames": ["kubernetes.io/*"],
        }
        self.grant("team", approve, kind="Group")
        self.audit.clear()
        self.assertEqual(200, self.put("approval", status, BOB)[0])
        who, what, allowed = self.audit[-1]
        self.assertEqual(
            ("bob", "approve", "signers", "kubernetes.io/*", True),
            (who.name, what.verb, what.resource, what.name, allowed),
        )

    def test_for_one_signer(self):
        """The permission to approve for one signer applies to no other signer."""
        approve = {**rule("approve", "certificates.k8s.io", "signers"), "resourceNames": [SERVING]}
        self.grant("team", approve, kind="Group")
        self.assertEqual(403, self.put("approval", {"conditions": [condition()]}, BOB)[0])

    def test_one_decision(self):
        """A request is either approved or denied, and that is final."""
        both = {"conditions": [condition(), condition("Denied")]}
        self.assertEqual(
            [
                'status.conditions[1].type: Invalid value: "Denied": Approved and Denied conditions'
                " are mutually exclusive"
            ],
            self.causes(self.put("approval", both)),
        )
        self.put("approval", {"conditions": [condition("Denied")]})
        self.assertEqual(
            ['status.conditions: Forbidden: updates may not remove a condition of type "Denied"'],
            self.causes(self.put("approval", {"conditions": [condition()]})),
        )

    def test_conditions(self):
        """The types of conditions are unique, and approvals and denials have the status True."""
        conditions = [
            condition(status="False"),
            condition(""),
            {"type": "Other"},
            condition("Other", status="Unknown"),
        ]
        self.assertEqual(
            [
                'status.conditions[0].status: Unsupported value: "False": supported values: "True"',
                "status.conditions[1].type: Required value",
                "status.conditions[2].status: Required value",
                'status.conditions[3].type: Duplicate value: "Other"',
            ],
            self.causes(self.put("approval", {"conditions": conditions})),
        )

    def test_conflict(self):
        """An approval of an older version is a Conflict."""
        _, old = self.call("GET", f"{PATH}/csr")
        self.put("approval", {"conditions": [condition("Other")]})
        status, _ = self.call("PUT", f"{PATH}/csr/approval", old)
        self.assertEqual(409, status)


class SigningTests(RequestTestCase):
    """Signing."""

    def setUp(self):
        """Create an approved request."""
        super().setUp()
        self.create(csr(), PATH)
        _, answer = self.put("approval", {"conditions": [condition()]})
        self.conditions = answer["status"]["conditions"]
        self.certificate = encoded(certificate().public_bytes(Encoding.PEM))

    def test_signed(self):
        """A user with permission to sign sets the certificate; the approval stays."""
        status = {"certificate": self.certificate, "conditions": self.conditions}
        sign = {**rule("sign", "certificates.k8s.io", "signers"), "resourceNames": [CLIENT]}
        self.grant("team", sign, kind="Group")
        _, answer = self.put("status", status, BOB)
        self.assertEqual(status, answer["status"])

    def test_decided_once_more(self):
        """A later approval does not change the certificate."""
        status = {"certificate": self.certificate, "conditions": self.conditions}
        self.put("status", status)
        _, answer = self.put("approval", {"conditions": self.conditions})
        self.assertEqual(self.certificate, answer["status"].get("certificate"))

    def test_permission(self):
        """Signing requires permission; writing an unchanged status does not."""
        status = {"certificate": self.certificate, "conditions": self.conditions}
        message = (
            'certificatesigningrequests.certificates.k8s.io "csr" is forbidden: user not permitted'
            ' to sign requests with signerName "kubernetes.io/kube-apiserver-client"'
        )
        self.assert_error(self.put("status", status, BOB), 403, "Forbidden", message)
        self.assertEqual(200, self.put("status", {"conditions": self.conditions}, BOB)[0])

    def test_no_decision(self):
        """A signer can neither add nor remove approvals."""
        denied = {"conditions": [*self.conditions, condition("Denied")]}
        self.assertIn(
            'status.conditions: Forbidden: updates may not add a condition of type "Denied"',
            self.causes(self.put("status", denied)),
        )
        self.assertEqual(
            ['status.conditions: Forbidden: updates may not remove a condition of type "Approved"'],
            self.causes(self.put("status", {"conditions": []})),
        )
        changed = {"conditions": [condition(message="by somebody else")]}
        _, answer = self.put("status", changed)
        self.assertEqual(self.conditions, answer["status"]["conditions"])

    def test_failed(self):
        """A signer can set the condition Failed."""
        _, answer = self.put("status", {"conditions": [*self.conditions, condition("Failed")]})
        types = [one["type"] for one in answer["status"]["conditions"]]
        self.assertEqual(["Approved", "Failed"], types)

    def test_certificates(self):
        """The certificate must be certificates in PEM, and nothing else."""
        other = b"-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n"
        broken = b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"
        for data, problem in (
            (b"x", "must contain at least one CERTIFICATE PEM block"),
            (other, 'only CERTIFICATE PEM blocks are allowed, found "PRIVATE KEY"'),
            (broken, "x509: malformed certificate"),
        ):
            status = {"certificate": encoded(data), "conditions": self.conditions}
            (cause,) = self.causes(self.put("status", status))
            self.assertIn('status.certificate: Invalid value: "<certificate data>": ', cause)
            self.assertIn(problem, cause)

    def test_once(self):
        """A certificate cannot be replaced."""
        self.put("status", {"certificate": self.certificate, "conditions": self.conditions})
        other = encoded(certificate(("eve",)).public_bytes(Encoding.PEM))
        self.assertEqual(
            ["status.certificate: Forbidden: updates may not modify existing certificate content"],
            self.causes(self.put("status", {"certificate": other, "conditions": self.conditions})),
        )
