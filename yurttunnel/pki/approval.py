"""The policy for approving the tunnel's certificate signing requests in a cluster.

A request that is recognized is approved if its form is correct and its requester is entitled to the
certificate: the service account of the servers for a server's certificate; for a node's certificate
that node, which is its kubelet or the agent's pod on it. The policy for hubs is in
:mod:`yurttunnel.pki.hub_approval`. All other requests are left alone and never denied, since
somebody else may approve them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from yurttunnel.cluster.fields import mapping, objects, text
from yurttunnel.cluster.nodes import MAX_ADDRESSES
from yurttunnel.http.authority import Address, parse_address
from yurttunnel.kube.resources import Object
from yurttunnel.pki.approval_decision import MAX_FURTHER_NAMES, Decision, Facts, NotApproved, Reason
from yurttunnel.pki.approval_requests import Kind, Request
from yurttunnel.pki.certificate_template import NODE_USER_PREFIX, NODES_ORGANIZATION
from yurttunnel.pki.cluster_identity import node_from_names
from yurttunnel.pki.hub_approval import KINDS, decide_hub, organization_fault
from yurttunnel.pki.issuer import CLIENT_AUTH, SERVER_AUTH
from yurttunnel.pki.names import NODE_ORGANIZATION, BadIdentity, is_cluster_node_name

SERVER_ACCOUNT = "yurt-tunnel-server"
AGENT_ACCOUNT = "yurt-tunnel-agent"
"""The service accounts, in the tunnel's namespace."""

# From k8s.io/apiserver pkg/authentication/serviceaccount util.go: extra fields that the API server
# sets for a token bound to a pod. Those of the node exist since Kubernetes 1.30 (KEP-4193).
_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
_NODE_NAME = "authentication.kubernetes.io/node-name"
_NODE_UID = "authentication.kubernetes.io/node-uid"

_ORGANIZATIONS = {
    Kind.SERVING: NODES_ORGANIZATION,
    Kind.PROXY_CLIENT: NODE_ORGANIZATION,
    Kind.AGENT: NODE_ORGANIZATION,
}
"""The organizations of the certificates that are not for hubs."""
_FOR_SERVERS = (Kind.SERVING, Kind.HUB_SERVING)
_SIGNATURE, _ENCIPHERMENT = "digital signature", "key encipherment"


def agent_node(request: Request) -> str | None:
    """Return the node whose agent made a request; ``None`` for other requests and invalid ones."""
    if request.kind is not Kind.AGENT or request.fault:
        return None
    try:
        return node_from_names(request.common_name, request.dns_names)
    except BadIdentity:
        return None


async def decide(request: Request, facts: Facts) -> Decision:
    """Decide about a request; only the facts that the decision needs are read."""
    try:
        _check_form(request)
        if request.kind in KINDS:
            return await decide_hub(request, facts)
        if request.kind is Kind.AGENT:
            return await _decide_agent(request, facts)
        return _decide_server(request, facts.namespace)
    except NotApproved as left:
        return left.decision


def _check_form(request: Request) -> None:
    if request.fault:
        raise NotApproved(Reason.MALFORMED, f"is not approved: {request.fault}")
    fault = _organization_fault(request)
    if fault is not None:
        raise NotApproved(Reason.ORGANIZATION, f"is not approved: {fault}")
    purpose = SERVER_AUTH if request.kind in _FOR_SERVERS else CLIENT_AUTH
    # Since Kubernetes 1.27, kubelets omit key encipherment for keys that do not use it.
    if request.usages - {_ENCIPHERMENT} != {_SIGNATURE, purpose}:
        raise NotApproved(
            Reason.USAGES,
            f"is not approved: its usages are {_listed(request.usages)}, and those of"
            f" {_described(request)} are {_listed([_SIGNATURE, _ENCIPHERMENT, purpose])}",
        )
    if request.key_fault:
        raise NotApproved(Reason.KEY, f"is not approved: {request.key_fault}")


def _organization_fault(request: Request) -> str | None:
    if request.kind in KINDS:
        return organization_fault(request)
    desired = _ORGANIZATIONS[request.kind]
    if request.organizations == (desired,):
        return None
    return (
        f"its organization is {', '.join(request.organizations)[:100]!r}, and that of"
        f" {_described(request)} is {desired!r}"
    )


def _decide_server(request: Request, namespace: str) -> Decision:
    entitled = _service_account(namespace, SERVER_ACCOUNT)
    requester = request.requester.username
    if requester != entitled:
        if _is_account_elsewhere(requester, SERVER_ACCOUNT):
            raise NotApproved(
                Reason.OTHER_INSTALLATION,
                f"belongs to another installation of the tunnel: {_quoted(requester)} requests"
                f" {_described(request)}, and the servers of this installation use {entitled}",
            )
        raise NotApproved(
            Reason.REQUESTER,
            f"is not approved: {_quoted(requester)} requests"
            f" {_described(request)}, which only {entitled} may have. If it is one of your"
            f" servers, run its pods with the service account {SERVER_ACCOUNT} in {namespace};"
            " otherwise find out what sends it",
        )
    names = [*request.dns_names, *map(str, request.addresses)]
    if request.kind is Kind.SERVING and not names:
        raise NotApproved(Reason.NAMES, "is not approved: it contains no host name and no address")
    if request.kind is Kind.PROXY_CLIENT and names:
        raise NotApproved(
            Reason.NAMES,
            f"is not approved: it is for {_listed(names)}, but {_described(request)} must not have"
            " names: with them it would be that of a node",
        )
    return Decision(f"is for {_described(request)}, requested by {entitled}")


async def _decide_agent(request: Request, facts: Facts) -> Decision:
    try:
        node = node_from_names(request.common_name, request.dns_names)
    except BadIdentity as error:
        raise NotApproved(Reason.NAMES, f"is not approved: {error}") from None
    found = await facts.node(node)
    await _check_requester(request, node, found, facts)
    if found is None:
        raise NotApproved(
            Reason.UNKNOWN_NODE,
            f"is not approved: there is no node {node}. The request is checked again: wait until"
            " its kubelet registers it, or correct the agent's --node-name",
        )
    further = _check_names(request, node, found)
    others = [each for each in further if await facts.node(each)]
    if others:
        raise NotApproved(
            Reason.OTHER_NODE,
            f"is not approved: {_listed(others)} is the name of another node, so node {node} cannot"
            f" have it, whatever its kubelet reports (kubectl get node {node} -o"
            " jsonpath='{.status.addresses}'). If one machine was registered twice, delete the"
            f" stale node; otherwise check whether node {node} is compromised",
        )
    requester = request.requester.username
    return Decision(f"is for the agent of node {node}, requested by {requester} for that node")


async def _check_requester(request: Request, node: str, found: Object | None, facts: Facts) -> None:
    requester = request.requester
    if requester.username == f"{NODE_USER_PREFIX}{node}" and NODES_ORGANIZATION in requester.groups:
        return
    account = _service_account(facts.namespace, AGENT_ACCOUNT)
    if requester.username != account:
        raise NotApproved(
            Reason.REQUESTER,
            f"is not approved: {_quoted(requester.username)} requests the certificate of node"
            f" {node}, which only that node's kubelet ({NODE_USER_PREFIX}{node} of"
            f" {NODES_ORGANIZATION}) and the agent's pod on it ({account}) may have. If it is node"
            f" {node}, have its agent use one of these; otherwise find out what sends it",
        )
    bound = await _bound_node(request, found, facts)
    if bound != node:
        raise NotApproved(
            Reason.REQUESTER,
            f"is not approved: {account} on node {bound} requests the certificate of node {node}."
            " Check the --node-name of that agent, and whether that node is compromised",
        )


async def _bound_node(request: Request, found: Object | None, facts: Facts) -> str:
    """Return the node to which the token of the agent's service account is bound."""
    requester = request.requester
    node, name = requester.only(_NODE_NAME), requester.only(_POD_NAME)
    if node is not None:
        _check_uid("node", node, requester.only(_NODE_UID), found)
        return node
    if name is None:
        raise NotApproved(
            Reason.UNBOUND_TOKEN,
            f"is not approved: the token of {requester.username} is not bound to a pod, so it does"
            " not identify the node. Use the token that is projected into the agent's pod, not one"
            " of a Secret",
        )
    pod = await facts.pod(name)
    if pod is None:
        raise NotApproved(
            Reason.UNBOUND_TOKEN,
            f"is not approved: the pod {name} that the token of {requester.username} is bound to is"
            f" not in {facts.namespace} any more. Its replacement requests a certificate itself",
        )
    _check_uid("pod", name, requester.only(_POD_UID), pod)
    scheduled = mapping(pod.get("spec")).get("nodeName")
    if not isinstance(scheduled, str) or not scheduled:
        raise NotApproved(
            Reason.UNBOUND_TOKEN, f"is not approved: the pod {name} is not scheduled to a node yet"
        )
    return scheduled


def _check_uid(kind: str, name: str, uid: str | None, found: Object | None) -> None:
    """Raise unless ``found`` is the same object, by UID, that a token was issued for."""
    metadata = mapping(None if found is None else found.get("metadata"))
    if uid is not None and metadata.get("name") == name and metadata.get("uid") != uid:
        raise NotApproved(
            Reason.UNBOUND_TOKEN,
            f"is not approved: its token is bound to a {kind} {name} that was deleted, and another"
            " has that name now. Restart the agent's pod",
        )


def _check_names(request: Request, node: str, found: Object) -> list[str]:
    """Return the requested host names other than ``node``; none may be the name of another node.

    Raise unless all requested names and addresses are the node's. They come from its object, from a
    field that its kubelet writes. A kubelet is therefore not trusted when it claims the name of
    another node, whose callers it would receive.
    """
    hosts, addresses = _names_of(node, found)
    further = sorted(set(request.dns_names) - {node})
    if len(further) > MAX_FURTHER_NAMES:
        raise NotApproved(
            Reason.NAMES,
            f"is not approved: it is for {len(further)} host names beside {node}, and at most"
            f" {MAX_FURTHER_NAMES} are allowed. Remove some from --agent-identifiers",
        )
    foreign_hosts = [host for host in further if host not in hosts]
    foreign = [str(address) for address in request.addresses if address not in addresses]
    if foreign_hosts or foreign:
        raise NotApproved(
            Reason.NAMES,
            f"is not approved: {_listed([*foreign_hosts, *foreign])} does not belong to node"
            f" {node}, whose names and addresses are {_listed([*hosts, *map(str, addresses)])}"
            f" (kubectl get node {node} -o jsonpath='{{.status.addresses}}')."
            f" {_advice(foreign_hosts, foreign)}",
        )
    return further


def _advice(hosts: list[str], addresses: list[str]) -> str:
    """Return what to do about names or addresses that are not the node's; one list is not empty."""
    sentences = []
    if addresses:
        # An agent gets its address when its pod starts, and is not notified when the address
        # changes.
        sentences.append(
            "If the node's address has changed (DHCP), restart the agent's pod to update its"
            " --node-ip; otherwise set --node-ip to an address of the node"
        )
    if hosts:
        sentences.append(f"Leave {_listed(hosts)} out of the agent's --agent-identifiers")
    return ". ".join(sentences)


def _described(request: Request) -> str:
    match request.kind:
        case Kind.SERVING:
            return "the serving certificate of the tunnel's servers"
        case Kind.PROXY_CLIENT:
            return "the certificate of the tunnel's servers for kubelets"
        case Kind.AGENT:
            return "the certificate of a node's agent"
        case Kind.HUB | Kind.HUB_SERVING:
            return "the certificate of a node's hub"


def _service_account(namespace: str, name: str) -> str:
    return f"system:serviceaccount:{namespace}:{name}"


def _is_account_elsewhere(username: str, name: str) -> bool:
    """Return whether ``username`` is the service account ``name`` of any namespace."""
    prefix, _, account = username.rpartition(":")
    return account == name and prefix.startswith("system:serviceaccount:")


def _quoted(text: str) -> str:
    # Usernames are arbitrary text, and this output goes to logs and terminals.
    return ascii(text[:253])


def _listed(texts: Iterable[str]) -> str:
    several = sorted(texts)
    shown = ", ".join(_quoted(each) for each in several[:10])
    more = f" and {len(several) - 10} more" if len(several) > 10 else ""
    return shown + more or "none"


def _names_of(node: str, found: Object) -> tuple[set[str], set[Address]]:
    """Read ``status.addresses`` of a ``Node``, whatever their types.

    The node's name is always included. Host names that a node's certificate cannot contain, such as
    wildcards, are ignored.
    """
    hosts, addresses = {node}, set[Address]()
    reported = objects(mapping(found.get("status")).get("addresses"))
    for each in islice(reported, MAX_ADDRESSES):
        name = text(each.get("address"))
        if (address := parse_address(name)) is not None:
            addresses.add(address)
        elif is_cluster_node_name(name.lower()):
            hosts.add(name.lower())
    return hosts, addresses
