"""Writes while offline."""

from __future__ import annotations

import json
import time
from collections import Counter

from tests.hub.offline.world import OfflineTestCase, item
from tests.hub.request.tokens import jwt, service_account_token
from yurttunnel.http.fields import MAX_TOKEN
from yurttunnel.hub.cache.events import OWNER_SHARE
from yurttunnel.hub.media.interfaces import Item, TypeMeta
from yurttunnel.hub.media.protobuf_objects import envelope
from yurttunnel.hub.offline.writes import MAX_BODY
from yurttunnel.hub.request.callers import read_token
from yurttunnel.kube.protobuf_fields import encode_bytes

POD = "/api/v1/namespaces/n/pods/p"
EVENTS = "/api/v1/namespaces/n/events"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCOUNT_TOKEN = "/api/v1/namespaces/n/serviceaccounts/web/token"
PROTOBUF = b"Content-Type: application/vnd.kubernetes.protobuf"
EVENT = TypeMeta("v1", "Event")


class RejectedTests(OfflineTestCase):
    """Rejected writes."""

    def test_writes(self):
        """No write is reported as done; the response has Retry-After."""
        self.store("pods.v1.core", item("p"))
        for method, target in (
            (b"POST", "/api/v1/namespaces/n/pods"),
            (b"PUT", POD),
            (b"PATCH", POD),
            (b"PATCH", POD + "/status"),
            (b"DELETE", POD),
            (b"DELETE", "/api/v1/namespaces/n/pods"),
            (b"POST", POD + "/eviction"),
            (b"POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews"),
            (b"POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
        ):
            status = self.assert_status(
                503, "ServiceUnavailable", "was not done", target, method=method, body=b"{}"
            )
            self.assertEqual(1, status["details"]["retryAfterSeconds"])
        self.assertEqual(b"1", self.send_request(POD, method=b"DELETE")[1][b"retry-after"])
        self.assertEqual(200, self.send_request(POD)[0])

    def test_connections_to_pods(self):
        """Logs and commands need the API."""
        for subresource in ("log", "exec?command=ls", "attach", "portforward", "proxy/x//y"):
            self.assert_status(503, "ServiceUnavailable", "", f"{POD}/{subresource}")
        upgrade = [b"Connection: Upgrade", b"Upgrade: SPDY/3.1"]
        target = f"{POD}/exec?command=ls"
        self.assert_status(503, "ServiceUnavailable", "", target, *upgrade)

    def test_connections_go_on(self):
        """A body is read to its end, so the client sees the response on an open connection."""
        connection = self.open(POD, method=b"PUT", body=b"x" * 100_000)
        self.assertTrue(connection.sent.startswith(b"HTTP/1.1 503"))
        self.assertNotIn(b"Connection: close", connection.sent)
        self.assertIsNone(connection.closed_with)

    def test_long_bodies(self):
        """A body that is too long is rejected, but not for requests that are rejected anyway."""
        length = b"Content-Length: %d" % (MAX_BODY + 1)
        for target, status, reason in (
            (EVENTS, 413, "RequestEntityTooLarge"),
            ("/api/v1/namespaces/n/pods", 503, "ServiceUnavailable"),
        ):
            self.assert_status(status, reason, "", target, length, method=b"POST")


class NodeTests(OfflineTestCase):
    """The kubelet's own Node."""

    def create(self, **more):
        """Create it."""
        return self.get_json("/api/v1/nodes", method=b"POST", body=b"{}", **more)

    def test_a_node_that_is_known(self):
        """A cached Node exists already, as the API would respond, and can be read."""
        for form in ("json", "protobuf"):
            self.setUp()
            self.store_one("nodes.v1.core", item("edge-1", namespace=""), form=form)
            status, content = self.create()
            self.assertEqual((409, "AlreadyExists"), (status, content["reason"]))
            self.assertEqual({"name": "edge-1", "kind": "nodes"}, content["details"])

    def test_a_node_that_is_not_known(self):
        """An unknown Node cannot be created."""
        self.assertEqual(503, self.create()[0])

    def test_others(self):
        """No other client can create this Node."""
        self.store_one("nodes.v1.core", item("edge-1", namespace=""))
        self.assertEqual(503, self.create(agent=b"kubectl/v1")[0])


class EventTests(OfflineTestCase):
    """Events that are created."""

    def stored_events(self):
        """Return the stored Events."""
        return self.successResultOf(self.cache.stored_events(99))

    def create(self, body, *fields, target=EVENTS):
        """Create an Event."""
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        return self.send_request(target, *fields, method=b"POST", body=body)

    def test_json(self):
        """It is stored as received, and the response is that of a creation."""
        event = {
            "metadata": {"name": "e", "creationTimestamp": "2025-06-15T15:06:40Z"},
            "count": 1,
        }
        for target in (EVENTS, "/apis/events.k8s.io/v1/namespaces/n/events"):
            status, _, body = self.create(event, b"Content-Type: application/json", target=target)
            self.assertEqual((201, event), (status, json.loads(body)))
            kept = self.stored_events()[-1]
            self.assertEqual((target, "application/json", ""), (kept.path, *kept[2::2]))
            self.assertEqual(event, json.loads(kept.body))
        self.assertEqual(2, self.offline.events.stored)

    def test_names(self):
        """An Event without a name gets one, so that it is not sent twice."""
        status, _, body = self.create({"metadata": {"generateName": "e-"}})
        metadata = json.loads(body)["metadata"]
        self.assertEqual(201, status)
        self.assertRegex(metadata["name"], "^e-.+")
        self.assertEqual("2025-06-15T15:06:40Z", metadata["creationTimestamp"])
        self.assertEqual(metadata, json.loads(self.stored_events()[0].body)["metadata"])

    def test_protobuf(self):
        """In protobuf it is stored as received."""
        body = envelope(EVENT, encode_bytes(1, encode_bytes(1, b"e")))
        status, fields, answer = self.create(body, PROTOBUF)
        self.assertEqual((201, body), (status, answer))
        self.assertEqual(PROTOBUF.partition(b": ")[2], fields[b"content-type"])
        self.assertEqual(body, self.stored_events()[0].body)

    def test_parameters_of_content_types(self):
        """The parameters of its ``Content-Type``, which do not count, are not stored."""
        for said in (b"application/json;x=" + b"y" * 4000, b"Application/JSON; charset=utf-8"):
            status, fields, _ = self.create({"metadata": {"name": "e"}}, b"Content-Type: " + said)
            self.assertEqual((201, b"application/json"), (status, fields[b"content-type"]))
            self.assertEqual("application/json", self.stored_events()[-1].content_type)

    def test_long(self):
        """No accepted Event blocks others for long."""
        event = b'{"metadata":{"generateName":"e-"},"related":[' + b"1," * 500_000 + b"1]}"
        before = time.process_time()
        self.assertEqual([413] * 15, [self.create(event)[0] for _ in range(15)])
        event = event[: MAX_BODY - 3] + b"1]}"
        self.assertEqual([201] * 15, [self.create(event)[0] for _ in range(15)])
        self.assertLess(time.process_time() - before, 1)

    def test_what_is_no_event(self):
        """An invalid body is rejected, and not stored."""
        nameless = envelope(EVENT, b"")
        for body, *fields in (
            (b"nonsense",),
            (b"[]",),
            (b"{}",),
            (b"nonsense", PROTOBUF),
            (nameless, PROTOBUF),
        ):
            self.assertEqual(400, self.create(body, *fields)[0], body)
        self.assertEqual(415, self.create(b"a: b", b"Content-Type: application/yaml")[0])
        self.assertEqual([], self.stored_events())

    def test_what_happens_again(self):
        """A patch of an Event gets 404, so its recorder creates a new one."""
        for method in (b"PATCH", b"PUT"):
            self.assert_status(
                404, "NotFound", "", f"{EVENTS}/e", method=method, body=b'{"count":2}'
            )

    def test_tokens(self):
        """An Event of a pod is sent later with the pod's token."""
        token = service_account_token("n", "web")
        self.accept(token)
        self.create({"metadata": {"name": "e"}}, b"Authorization: Bearer " + token.encode())
        self.assertEqual(token, self.stored_events()[0].token)

    def assert_rejected(self, status, text, *fields, target=EVENTS):
        """Assert that an Event is rejected, and not stored."""
        before = len(self.stored_events())
        found, _, body = self.create({"metadata": {"name": "e"}}, *fields, target=target)
        self.assertEqual(status, found)
        self.assertIn(text, json.loads(body)["message"])
        self.assertEqual(before, len(self.stored_events()))

    def test_placeholders(self):
        """An Event with a token that the API does not know is rejected."""
        token, _ = self.tokens.issue("n", "web", [])
        self.assert_rejected(
            503, "which the API does not know", b"Authorization: Bearer " + token.encode()
        )

    def test_dry_runs(self):
        """A dry run is not sent later as a real write."""
        for query in ("dryRun=All", "pretty=true&dryRun=All"):
            self.assert_rejected(503, "was not done", target=f"{EVENTS}?{query}")

    def test_namespaces(self):
        """An invalid namespace is rejected, because the Event could never be sent."""
        for namespace in ("a%20b", "%C3%A9", "A", "a.b", "-a", "a" * 64):
            self.assert_rejected(400, "DNS label", target=f"/api/v1/namespaces/{namespace}/events")
        self.assert_rejected(400, "DNS label", target="/api/v1/events")

    def test_shares(self):
        """A service account cannot evict the Events of others during an outage."""
        tokens = [service_account_token("n", name) for name in ("loud", "web")]
        loud, web = (b"Authorization: Bearer " + token.encode() for token in tokens)
        for token in tokens:
            self.accept(token)
        long = {"metadata": {"name": "e"}, "message": "x" * 100_000}
        found = [self.create(long, loud)[0] for _ in range(22)]
        self.assertEqual([201] * 20 + [503] * 2, found)
        self.assertEqual(201, self.create(long, web)[0])
        self.assertEqual([201] * 4, [self.create(long)[0] for _ in range(4)])
        self.connectivity.change(True)
        self.connectivity.change(False)
        self.assertEqual(201, self.create(long, loud)[0])

    def test_short_events_count(self):
        """Many short Events are limited, too."""
        token = service_account_token("n", "loud")
        self.accept(token)
        field = b"Authorization: Bearer " + token.encode()
        found = [self.create({"metadata": {"name": "e"}}, field)[0] for _ in range(640)]
        self.assertEqual({201: 625, 503: 15}, Counter(found))
        self.assert_rejected(503, "n:loud use the whole share", field)

    def test_shares_of_stored_events(self):
        """The stored size counts: with an added time, non-ASCII text is twice as long."""
        token = service_account_token("n", "loud")
        self.accept(token)
        long = {"metadata": {"name": "e"}, "message": "\u754c" * 40_000}
        body = json.dumps(long, ensure_ascii=False).encode()
        field = b"Authorization: Bearer " + token.encode()
        found = [self.create(body, field)[0] for _ in range(10)]
        self.assertEqual([201] * 8 + [503] * 2, found)
        self.assertLessEqual(sum(len(event.body) for event in self.stored_events()), OWNER_SHARE)

    def test_tokens_count(self):
        """The token counts, too: a long one takes more than a short body."""
        token = f"{service_account_token('n', 'loud')}{'a' * 15_000}"
        self.accept(token)
        field = b"Authorization: Bearer " + token.encode()
        found = Counter(self.create({"metadata": {"name": "e"}}, field)[0] for _ in range(140))
        self.assertGreater(found[503], 0)
        kept = self.successResultOf(self.cache.stored_events(200))
        self.assertLessEqual(sum(len(each.body) + len(each.token) for each in kept), OWNER_SHARE)

    def test_bodies_that_were_read(self):
        """An Event that was being forwarded when the cloud became unreachable is stored as well."""
        body = b'{"metadata":{"name":"e","creationTimestamp":"2025-06-15T15:06:40Z"}}'
        self.body = body
        self.assertEqual(201, self.create(b"")[0])
        self.assertEqual(body, self.stored_events()[0].body)

    def test_long_bodies_that_were_read(self):
        """A body that is too long is rejected in this case, too."""
        self.body = b'{"metadata":{"name":"e"}}'.ljust(MAX_BODY + 1)
        self.assertEqual(413, self.create(b"")[0])
        self.assertEqual(0, len(self.stored_events()))

    def test_when_nothing_can_be_stored(self):
        """If nothing can be written to disk, no Event is accepted."""
        self.cache.trouble = "the disk is full"
        status = self.assert_status(
            503,
            "ServiceUnavailable",
            "the disk is full",
            EVENTS,
            method=b"POST",
            body=b'{"metadata":{"name":"e"}}',
        )
        self.assertEqual(1, status["details"]["retryAfterSeconds"])

    def test_when_accounts_have_no_room(self):
        """If the node's own data leaves no room for pods' Events, only these are rejected."""
        token = service_account_token("n", "web")
        self.accept(token)
        self.cache.is_crowded = True
        self.assert_rejected(503, "there is no room", b"Authorization: Bearer " + token.encode())
        self.assertEqual(201, self.create({"metadata": {"name": "e"}})[0])


class TokenReviewTests(OfflineTestCase):
    """The kubelet's TokenReviews."""

    TOKEN = service_account_token("n", "web")

    def review(self, spec, *fields, **more):
        """Return the status of a review."""
        body = spec if isinstance(spec, bytes) else json.dumps({"spec": spec}).encode()
        status, content = self.get_json(REVIEWS, *fields, method=b"POST", body=body, **more)
        self.assertEqual((201, "TokenReview"), (status, content["kind"]), content)
        return content["status"]

    def test_accepted(self):
        """A service account's token that the API has accepted is authenticated."""
        self.accept(self.TOKEN)
        expected = {
            "authenticated": True,
            "user": {
                "username": "system:serviceaccount:n:web",
                "groups": [
                    "system:serviceaccounts",
                    "system:serviceaccounts:n",
                    "system:authenticated",
                ],
            },
        }
        self.assertEqual(expected, self.review({"token": self.TOKEN}))
        message = encode_bytes(2, encode_bytes(1, self.TOKEN.encode()))
        type = TypeMeta("authentication.k8s.io/v1", "TokenReview")
        self.assertEqual(expected, self.review(envelope(type, message), PROTOBUF))

    def test_no_account(self):
        """Tokens that are unknown, of other users, or for audiences are not authenticated."""
        person = jwt({"iss": "https://sso", "sub": "alice"})
        placeholder, _ = self.tokens.issue("n", "web", [])
        self.accept(person)
        self.assertFalse(self.review({"token": self.TOKEN})["authenticated"])
        self.accept(self.TOKEN)
        for spec in (
            {"token": person},
            {"token": placeholder},
            {"token": "nonsense"},
            {"token": ""},
            {},
            {"token": self.TOKEN, "audiences": ["vault"]},
        ):
            found = self.review(spec)
            self.assertFalse(found["authenticated"], spec)
            self.assertNotIn("user", found)

    def test_long_tokens(self):
        """Tokens that are too long take no memory."""
        read_token.cache_clear()
        for length in (MAX_TOKEN, MAX_TOKEN + 1, 100_000):
            self.assertFalse(self.review({"token": "x" * length})["authenticated"])
        self.assertEqual(1, read_token.cache_info().currsize)

    def test_invalid(self):
        """An invalid review is rejected."""
        surrogate = b'{"spec": {"token": "\\ud800"}}'
        for body, *fields in ((b"x",), (b"x", PROTOBUF), (surrogate,)):
            self.assert_status(
                400, "BadRequest", "not a TokenReview", REVIEWS, *fields, method=b"POST", body=body
            )

    def test_others(self):
        """Only the node itself may create reviews."""
        self.accept(self.TOKEN)
        field = b"Authorization: Bearer " + self.TOKEN.encode()
        self.assert_status(
            503, "ServiceUnavailable", "", REVIEWS, field, method=b"POST", body=b"{}"
        )


class TokenRequestTests(OfflineTestCase):
    """Tokens for service accounts."""

    SPEC = {"expirationSeconds": 3607, "boundObjectRef": {"kind": "Pod", "name": "p"}}

    def request(self, spec, *fields):
        """Return the status and content of a TokenRequest."""
        body = spec if isinstance(spec, bytes) else json.dumps({"spec": spec}).encode()
        return self.get_json(ACCOUNT_TOKEN, *fields, method=b"POST", body=body)

    def check(self, status, content):
        """Assert that the response is a placeholder for the account."""
        self.assertEqual((201, "TokenRequest"), (status, content["kind"]), content)
        self.assertEqual(600, content["spec"]["expirationSeconds"])
        self.assertEqual("2025-06-15T15:16:40Z", content["status"]["expirationTimestamp"])
        owner = self.tokens.owner(content["status"]["token"])
        self.assertEqual("system:serviceaccount:n:web", owner)

    def test_a_pod_of_the_node(self):
        """The kubelet gets a placeholder for the account of a known pod."""
        self.store_one("pods.v1.core", item("p", spec={"serviceAccountName": "web"}))
        self.check(*self.request(self.SPEC))
        bound = encode_bytes(1, b"Pod") + encode_bytes(3, b"p")
        message = encode_bytes(2, encode_bytes(3, bound))
        type = TypeMeta("authentication.k8s.io/v1", "TokenRequest")
        self.check(*self.request(envelope(type, message), PROTOBUF))

    def test_a_pod_in_protobuf(self):
        """The account is also read from a pod in protobuf."""
        pod = encode_bytes(1, encode_bytes(1, b"p")) + encode_bytes(2, encode_bytes(8, b"web"))
        self.store_one("pods.v1.core", Item("n", "p", "1", {}, "", pod), form="protobuf")
        self.check(*self.request(self.SPEC))

    def test_a_pod_in_both_forms(self):
        """The newer form counts: the other is from before the kubelet changed its form."""
        pod = encode_bytes(1, encode_bytes(1, b"p")) + encode_bytes(2, encode_bytes(8, b"other"))
        for version, status in (("4", 201), ("6", 403)):
            self.store_one("pods.v1.core", Item("n", "p", version, {}, "", pod), form="protobuf")
            self.store_one("pods.v1.core", item("p", 5, spec={"serviceAccountName": "web"}))
            self.assertEqual(status, self.request(self.SPEC)[0], version)

    def test_audiences(self):
        """The token has the requested audiences."""
        self.store_one("pods.v1.core", item("p", spec={"serviceAccountName": "web"}))
        status, content = self.request({**self.SPEC, "audiences": ["vault"]})
        self.assertEqual((201, ["vault"]), (status, content["spec"]["audiences"]))
        self.assertIsNone(self.tokens.owner(content["status"]["token"]))

    def test_accounts_of_others(self):
        """There is no token for an account that no pod of this node uses."""
        self.store_one("pods.v1.core", item("p", spec={"serviceAccountName": "other"}))
        for spec, why in (
            (self.SPEC, 'the kubelet of node edge-1 knows no pod "p"'),
            ({}, "only tokens that are bound to a pod"),
            ({"boundObjectRef": {"kind": "Secret", "name": "p"}}, "bound to a pod"),
            ({"boundObjectRef": {"kind": "Pod", "name": "unknown"}}, 'knows no pod "unknown"'),
        ):
            status, content = self.request(spec)
            self.assertEqual((403, "Forbidden"), (status, content["reason"]), spec)
            self.assertIn(why, content["message"])

    def test_invalid(self):
        """An invalid request is rejected, also one with an incomplete character."""
        for body in (b"x", b'{"spec": {"boundObjectRef": {"kind": "Pod", "name": "\\ud800"}}}'):
            status, content = self.request(body)
            self.assertEqual((400, "BadRequest"), (status, content["reason"]), content)

    def test_others(self):
        """Only the node itself may request tokens."""
        self.store_one("pods.v1.core", item("p", spec={"serviceAccountName": "web"}))
        token = service_account_token("n", "web")
        self.accept(token)
        status, _ = self.request(self.SPEC, b"Authorization: Bearer " + token.encode())
        self.assertEqual(503, status)


class SwitchedOffTests(OfflineTestCase):
    """Disabled placeholders."""

    placeholders = False

    def test_token_requests(self):
        """TokenRequests are rejected like other writes."""
        self.store_one("pods.v1.core", item("p", spec={"serviceAccountName": "web"}))
        body = json.dumps({"spec": TokenRequestTests.SPEC}).encode()
        self.assert_status(
            503, "ServiceUnavailable", "was not done", ACCOUNT_TOKEN, method=b"POST", body=body
        )
