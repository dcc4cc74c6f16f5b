"""What is said to who cannot be answered without the cloud, in the API's terms."""

from __future__ import annotations

from yurttunnel.http.errors import ApiFailure
from yurttunnel.hub.request.requests import ApiRequest, ResourceType

RETRY_AFTER = 1
"""Seconds. client-go asks again by itself, ten times before it tells anybody (``maxRetries`` of
k8s.io/client-go rest/request.go): with more, kubelet and people would wait for minutes."""


class Refusals:
    """Makes the failures of one node."""

    def __init__(self, node_name: str) -> None:
        self._node = node_name
        self._away = f"node {node_name} cannot reach the Kubernetes API"
        self.partial = f"{self._away}: this is what its kubelet knows, and may be a part"
        """What people are warned of who get what kubelet knows."""

    def unauthorized(self, why: str) -> ApiFailure:
        """Return the failure that it is not known who asks."""
        return ApiFailure(401, f"Unauthorized: {self._away}, and {why}")

    def unavailable(self, what: str, retry: bool = True) -> ApiFailure:
        """Return the failure that something needs the API; without ``retry`` nobody comes again
        by itself.
        """
        text = f"{self._away}: {what}"
        return ApiFailure(503, text, retry_after=RETRY_AFTER if retry else None)

    def not_written(self, request: ApiRequest) -> ApiFailure:
        """Return the failure that nothing is changed without the API."""
        return self.unavailable(f"{request.verb} of {_named(request)} was not done")

    def for_the_cloud(self, request: ApiRequest) -> ApiFailure:
        """Return the failure that only the API, or a node through it, answers this."""
        return self.unavailable(f"{request.verb} of {_named(request)} is for when it is back")

    def not_kept(self, request: ApiRequest, component: str) -> ApiFailure:
        """Return the failure that nothing is kept of what is asked for."""
        return self.unavailable(
            f"what it answers to {component or 'clients without a User-Agent'} about"
            f" {_named(request)} is not kept here"
        )

    def not_found(self, request: ApiRequest) -> ApiFailure:
        """Return the failure that there is no such object, as far as it was known last."""
        text = f"{_named(request)} not found when it was last known; {self._away}"
        return ApiFailure(404, text, details=_details(request))

    def not_seen(self, request: ApiRequest) -> ApiFailure:
        """Return the failure that nobody knows whether there is such an object."""
        return self.unavailable(f"{_named(request)} was never seen here")

    def never_listed(self, request: ApiRequest) -> ApiFailure:
        """Return the failure that a list was never seen; an empty one would say something else."""
        what = _qualified(request.resource)
        if request.namespace:
            what += f" of namespace {request.namespace}"
        text = f"{what} were never listed by this client with such a selection; {self._away}"
        return ApiFailure(404, text, details=_details(request))

    def already_exists(self, request: ApiRequest, name: str) -> ApiFailure:
        """Return the failure that a name is taken."""
        text = f'{_qualified(request.resource)} "{name}" already exists'
        return ApiFailure(409, text, "AlreadyExists", {**_details(request), "name": name})

    def not_running(self, request: ApiRequest, pod: str) -> ApiFailure:
        """Return the failure that a service account is not that of a pod of this node."""
        text = (
            f'{_named(request)} is forbidden: the kubelet of node {self._node} knows no pod "{pod}"'
            " that runs as this account"
        )
        return ApiFailure(403, text, details=_details(request))

    def expired(self, why: str) -> ApiFailure:
        """Return the failure that a list cannot be continued, and has to begin anew."""
        return ApiFailure(410, f"{why}: begin the list anew")

    def too_new(self, asked: str, known: str) -> ApiFailure:
        """Return the failure that what is known is older than what is asked for.

        In the API's words, by which clients ask for any version instead (``NewTooLargeResource-
        VersionError`` of k8s.io/apimachinery pkg/api/errors).
        """
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        text = f"Too large resource version: {asked}, current: {known}"
        return ApiFailure(504, text, "Timeout", {"causes": [cause]}, RETRY_AFTER)

    def not_acceptable(self) -> ApiFailure:
        """Return the failure that nothing of what the client accepts can be made here."""
        return ApiFailure(
            406,
            "only application/json and application/vnd.kubernetes.protobuf can be had here, whole,"
            " as Table (JSON) or as PartialObjectMetadata",
        )


def _qualified(resource: ResourceType | None) -> str:
    """Return a resource as the API's messages have it."""
    assert resource is not None
    return f"{resource.name}.{resource.group}" if resource.group else resource.name


def _named(request: ApiRequest) -> str:
    if request.resource is None:
        return request.path
    what = _qualified(request.resource)
    if request.subresource:
        what += f"/{request.subresource}"
    return f'{what} "{request.name}"' if request.name else what


def _details(request: ApiRequest) -> dict[str, object]:
    assert request.resource is not None
    fields = {
        "name": request.name,
        "group": request.resource.group,
        "kind": request.resource.name,
    }
    return {key: value for key, value in fields.items() if value}
