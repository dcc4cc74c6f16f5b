"""Failure responses of the offline side, as the API would phrase them."""

from __future__ import annotations

from yurttunnel.http.errors import ApiFailure
from yurttunnel.hub.request.requests import ApiRequest, ResourceType

RETRY_AFTER = 1
"""In seconds. client-go retries by itself, ten times before it reports an error (``maxRetries`` of
k8s.io/client-go rest/request.go): with a longer value, the kubelet and users would wait minutes."""


class OfflineFailures:
    """Creates the failures of one node."""

    def __init__(self, node_name: str) -> None:
        self._node = node_name
        self._unreachable = f"node {node_name} cannot reach the Kubernetes API"
        self.partial = (
            f"{self._unreachable}: this is what its kubelet has cached, and may be incomplete"
        )
        """The warning for users who get the kubelet's data."""

    def unauthorized(self, why: str) -> ApiFailure:
        """Return the failure of a request that is not authenticated."""
        return ApiFailure(401, f"Unauthorized: {self._unreachable}, and {why}")

    def unavailable(self, what: str, retry: bool = True) -> ApiFailure:
        """Return the failure of a request that needs the API; ``retry`` makes clients retry."""
        text = f"{self._unreachable}: {what}"
        return ApiFailure(503, text, retry_after=RETRY_AFTER if retry else None)

    def not_written(self, request: ApiRequest) -> ApiFailure:
        """Return the failure of a write."""
        return self.unavailable(f"{request.verb} of {_named(request)} was not done")

    def cloud_only(self, request: ApiRequest) -> ApiFailure:
        """Return the failure of a request that only the API, or a node through it, can serve."""
        return self.unavailable(
            f"{request.verb} of {_named(request)} is possible only when it is reachable"
        )

    def not_cached(self, request: ApiRequest, component: str) -> ApiFailure:
        """Return the failure of a request whose responses are not cached."""
        return self.unavailable(
            f"its responses to {component or 'clients without a User-Agent'} about"
            f" {_named(request)} are not cached here"
        )

    def not_found(self, request: ApiRequest) -> ApiFailure:
        """Return the failure for an object that did not exist when the API was last reachable."""
        text = f"{_named(request)} not found when the API was last reachable; {self._unreachable}"
        return ApiFailure(404, text, details=_details(request))

    def not_seen(self, request: ApiRequest) -> ApiFailure:
        """Return the failure for an object that is not known to exist or not."""
        return self.unavailable(f"{_named(request)} was never received here")

    def not_listed(self, request: ApiRequest) -> ApiFailure:
        """Return the failure for a list that is not known; an empty one would be wrong."""
        what = _qualified(request.resource)
        if request.namespace:
            what += f" of namespace {request.namespace}"
        text = (
            f"{what} were not listed by this client with such a selector, or not all are known any"
            f" more; {self._unreachable}"
        )
        return ApiFailure(404, text, details=_details(request))

    def already_exists(self, request: ApiRequest, name: str) -> ApiFailure:
        """Return the failure for a name that exists already."""
        text = f'{_qualified(request.resource)} "{name}" already exists'
        return ApiFailure(409, text, "AlreadyExists", {**_details(request), "name": name})

    def not_running(self, request: ApiRequest, pod: str) -> ApiFailure:
        """Return the failure of a request for a token of an account that ``pod`` does not use.

        ``pod`` is empty for a token that is not bound to a pod.
        """
        why = f'the kubelet of node {self._node} knows no pod "{pod}" that runs as this account'
        if not pod:
            why = f"node {self._node} gets only tokens that are bound to a pod"
        text = f"{_named(request)} is forbidden: {why}"
        return ApiFailure(403, text, details=_details(request))

    def expired(self, why: str) -> ApiFailure:
        """Return the failure for a list that cannot be continued, and has to start again."""
        return ApiFailure(410, f"{why}: start the list again")

    def too_new(self, requested: str, known: str) -> ApiFailure:
        """Return the failure for a requested version that is newer than the cached one.

        It has the API's wording, after which clients request any version instead
        (``NewTooLargeResourceVersionError`` of k8s.io/apimachinery pkg/api/errors).
        """
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        text = f"Too large resource version: {requested}, current: {known}"
        return ApiFailure(504, text, "Timeout", {"causes": [cause]}, RETRY_AFTER)

    def not_acceptable(self) -> ApiFailure:
        """Return the failure of a request that accepts no form that can be built here."""
        return ApiFailure(
            406,
            "only application/json and application/vnd.kubernetes.protobuf are available here, for"
            " complete objects, Tables (JSON) and PartialObjectMetadata",
        )


def _qualified(resource: ResourceType | None) -> str:
    """Return a resource as in the API's messages."""
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
    fields = {"name": request.name, "group": request.resource.group, "kind": request.resource.name}
    return {key: value for key, value in fields.items() if value}
