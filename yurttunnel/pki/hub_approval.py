"""The policy for approving certificates of a node's hub.

The client certificate, by which the hub authenticates as its node to the API, is for that node and
for users that may become one. This is the check of kube-controller-manager for a kubelet's first
certificate (``certificatesigningrequests/nodeclient``). The serving certificate for pods is for the
node itself. It contains the API's names, which refer to the hub on each node. A compromised node
can thus impersonate the API to clients that it can redirect to itself; it could do so to its own
pods anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from yurttunnel.http.authority import Address
from yurttunnel.pki.approval_decision import Decision, Facts, NotApproved, Reason
from yurttunnel.pki.approval_requests import Kind, Request
from yurttunnel.pki.certificate_template import (
    HUB_ADDRESS_6,
    HUB_NAMES,
    HUB_ORGANIZATION,
    NODE_USER_PREFIX,
    NODES_ORGANIZATION,
)
from yurttunnel.pki.names import is_cluster_node_name

KINDS = (Kind.HUB, Kind.HUB_SERVING)

_BOOTSTRAP_USER = "system:bootstrap:"
_BOOTSTRAP_GROUP = "system:bootstrappers"


async def decide_hub(request: Request, facts: Facts) -> Decision:
    """Decide about a request whose usages and key are valid; raises :class:`NotApproved`."""
    if not is_cluster_node_name(request.common_name.removeprefix(NODE_USER_PREFIX)):
        raise NotApproved(
            Reason.NAMES, f"is not approved: {request.common_name!a} is not a valid name of a node"
        )
    if request.kind is Kind.HUB:
        return await _decide_client(request, facts)
    return await _decide_serving(request, facts)


def organization_fault(request: Request) -> str | None:
    """Complete "is not approved: ..." unless the organizations may be approved automatically."""
    usual = {HUB_ORGANIZATION, NODES_ORGANIZATION}
    if request.kind is Kind.HUB_SERVING:
        usual = {NODES_ORGANIZATION}
    found = set(request.organizations)
    if not usual <= found or len(found) != len(request.organizations):
        return (
            f"its organizations are {_quoted(request.organizations)}, and those of"
            f" {_described(request)} are {_quoted(sorted(usual))}"
        )
    further = found - usual
    if request.kind is Kind.HUB and _is_node_itself(request):
        # A node gets no organization of which it is not a member already.
        further -= request.requester.groups
    if further:
        return (
            f"it is for {_quoted(sorted(further))}, too (--hub-cert-organizations), of which its"
            " requester is not a member. Approve it once; its renewals are then approved"
        )
    return None


async def _decide_client(request: Request, facts: Facts) -> Decision:
    names = [*request.dns_names, *map(str, request.addresses)]
    if names:
        raise NotApproved(
            Reason.NAMES,
            f"is not approved: it is for {_quoted(names)}, but {_described(request)} has no names",
        )
    requester = request.requester.username
    if not _is_node_itself(request):
        if not _is_bootstrapper(request):
            raise NotApproved(Reason.REQUESTER, _foreign(request))
        if not await facts.may_join(request.requester):
            raise NotApproved(
                Reason.REQUESTER,
                f"is not approved: {requester!a} may not create"
                " certificatesigningrequests/nodeclient (certificates.k8s.io), which authorizes a"
                " user to become a node. Bind its group to the ClusterRole"
                " system:certificates.k8s.io:certificatesigningrequests:nodeclient, as kubeadm"
                " does",
            )
    return Decision(f"is for {_described(request)}, requested by {requester}")


async def _decide_serving(request: Request, facts: Facts) -> Decision:
    if not _is_node_itself(request):
        raise NotApproved(Reason.REQUESTER, _foreign(request))
    api_addresses = await facts.api_addresses()
    foreign = sorted(set(request.dns_names) - set(HUB_NAMES))
    foreign += [str(each) for each in request.addresses if not _is_of_hub(each, api_addresses)]
    if foreign:
        raise NotApproved(
            Reason.NAMES,
            f"is not approved: {_quoted(foreign)} is neither a name of the API nor an address of a"
            f" hub: loopback, link-local, {HUB_ADDRESS_6}, and that of the Service kubernetes",
        )
    return Decision(f"is for {_described(request)}, requested by {request.requester.username}")


def _is_of_hub(address: Address, api_addresses: Collection[Address]) -> bool:
    return (
        address.is_loopback
        or address.is_link_local
        or address == HUB_ADDRESS_6
        or address in api_addresses
    )


def _is_node_itself(request: Request) -> bool:
    requester = request.requester
    return requester.username == request.common_name and NODES_ORGANIZATION in requester.groups


def _is_bootstrapper(request: Request) -> bool:
    requester = request.requester
    return requester.username.startswith(_BOOTSTRAP_USER) and _BOOTSTRAP_GROUP in requester.groups


def _foreign(request: Request) -> str:
    who = "only that node"
    if request.kind is Kind.HUB:
        who += ", or the holder of a bootstrap token,"
    return (
        f"is not approved: {request.requester.username[:253]!a} requests {_described(request)},"
        f" which {who} may have: find out what sends it"
    )


def _described(request: Request) -> str:
    node = ascii(request.common_name.removeprefix(NODE_USER_PREFIX)[:253])
    if request.kind is Kind.HUB:
        return f"the certificate of the hub of node {node}"
    return f"the certificate of the hub of node {node} for pods"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(ascii(each[:253]) for each in names[:10]) or "none"
