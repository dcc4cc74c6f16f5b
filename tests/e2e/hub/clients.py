"""Clients of the hub on a node, each identified by its User-Agent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from tests.e2e.http_clients import Answer, HttpClient, Response

JSON = "application/json"
PROTOBUF = "application/vnd.kubernetes.protobuf"
PROTOBUF_FIRST = f"{PROTOBUF},{JSON}"
"""What the kubelet and kube-proxy accept (``--kube-api-content-type`` and its default)."""

TABLE = ",".join(f"{JSON};as=Table;v={version};g=meta.k8s.io" for version in ("v1", "v1beta1"))
TABLE_FIRST = f"{TABLE},{JSON}"
"""The types that ``kubectl get`` accepts."""

LARGE = 64 * 1024 * 1024
"""Maximum size of a response in bytes: more than any list of a test has."""

ANSWER_SECONDS = 10.0

Object = dict[str, Any]


class NodeClient:
    """A program on the node; ``component`` is the first word of its User-Agent.

    ``case`` provides connections and waits; requests go to ``port``, each on a connection of its
    own. ``token`` is its bearer token, if it has one.
    """

    def __init__(
        self, case, port: int, component: str = "kubelet", accept: str = JSON, token: str = ""
    ) -> None:
        self.port = port
        self._case = case
        self._fields = [(b"Accept", accept.encode())]
        if component:
            agent = f"{component}/v1.34.0 (linux/amd64) kubernetes/0123456"
            self._fields.append((b"User-Agent", agent.encode()))
        if token:
            self._fields.append((b"Authorization", f"Bearer {token}".encode()))

    async def send(self, target: str, method: str = "GET", body: Any = None, fields=()) -> Answer:
        """Send a request; ``body`` is an object for JSON, or bytes.

        The response has the connection as ``peer``.
        """
        peer = await self._connect()
        fields = [*self._fields, *fields]
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            fields.append((b"Content-Type", JSON.encode()))
        answer = peer.ask(target, method, fields, body)
        answer.peer = peer
        return answer

    async def ask(
        self,
        target: str,
        method: str = "GET",
        body: Any = None,
        fields=(),
        seconds: float = ANSWER_SECONDS,
    ) -> Response:
        """Send a request, and return the complete response."""

        async def asked() -> Response:
            return await (await self.send(target, method, body, fields)).whole()

        return await self._case.within(seconds, asked(), f"{method} {target}")

    async def get(self, target: str, **query: str) -> Object:
        """Return the JSON of a response, which must have status 200."""
        target = extended(target, query)
        response = await self.ask(target)
        return self.expect(response, 200, target)

    def expect(self, response: Response, status: int, what: str) -> Object:
        """Require a status; return the JSON of the body."""
        if response.status != status:
            raise self._case.failureException(
                f"{what} is {response.status} and not {status}: {response.body[:2000]!r}"
            )
        return json.loads(response.body)

    async def refused(
        self, status: int | Sequence[int], target: str, method: str = "GET", body: Any = None
    ) -> Object:
        """Send a request that must be rejected; return its ``Status``."""
        response = await self.ask(target, method, body)
        case = self._case
        if not isinstance(status, int):
            case.assertIn(response.status, status, target)
            status = response.status
        failure = self.expect(response, status, f"{method} {target}")
        case.assertEqual((failure["kind"], failure["status"]), ("Status", "Failure"))
        case.assertEqual(failure["code"], status)
        case.assertTrue(failure["message"])
        return failure

    async def watch(self, target: str, **query: str) -> WatchStream:
        """Begin a watch, whose head must arrive at once."""
        answer = await self.send(extended(target, {"watch": "true", **query}))
        begun = answer.begun()
        response = await self._case.within(ANSWER_SECONDS, begun, f"the watch of {target}")
        return WatchStream(self._case, answer, response)

    async def _connect(self) -> HttpClient:
        return await self._case.dial(self.port, HttpClient(f"127.0.0.1:{self.port}", LARGE))


class WatchStream:
    """A watch in JSON, open until the hub or :meth:`leave` ends it."""

    def __init__(self, case, answer: Answer, response: Response) -> None:
        self._case = case
        self._answer = answer
        self.response = response

    @property
    def events(self) -> Sequence[Object]:
        """The events so far."""
        *lines, _ = self.response.body.split(b"\n")
        return [json.loads(line) for line in lines if line]

    @property
    def types_and_names(self) -> Sequence[tuple[str, str]]:
        """The types and names of the events so far, without bookmarks."""
        return [
            (event["type"], event["object"]["metadata"].get("name", ""))
            for event in self.events
            if event["type"] != "BOOKMARK"
        ]

    async def wait_for_events(
        self, *types_and_names: tuple[str, str], seconds: float = ANSWER_SECONDS
    ) -> None:
        """Wait until all of these events have arrived."""
        await self._case.eventually(
            lambda: set(types_and_names) <= set(self.types_and_names),
            f"the watch tells of {types_and_names}",
            seconds,
        )

    async def wait_for_end(self, seconds: float) -> None:
        """Require that it ends normally."""
        await self._case.within(seconds, self._answer.whole(), "the watch ends")

    @property
    def ended(self) -> bool:
        """Whether it has ended, normally or not."""
        return self._answer.complete or self._answer.error is not None


def extended(target: str, query: Mapping[str, str]) -> str:
    """Add a query to a target that may have one."""
    if not query:
        return target
    return f"{target}{'&' if '?' in target else '?'}{urlencode(query)}"


def names(listed: Object) -> list[str]:
    """Return the names of a list's items in order."""
    return sorted(one["metadata"]["name"] for one in listed["items"])


def contents(listed: Object) -> list[Object]:
    """Return the items of a list in a fixed order for comparison.

    The items have no kind, as in the lists of kube-apiserver.
    """

    def place(one: Object) -> tuple[str, str]:
        return one["metadata"].get("namespace", ""), one["metadata"]["name"]

    items = [
        {key: value for key, value in one.items() if key not in ("kind", "apiVersion")}
        for one in listed["items"]
    ]
    return sorted(items, key=place)


def status_of(response: Response) -> Object:
    """Return the ``Status`` of an error response."""
    return json.loads(response.body)
