"""Who may have which certificate of the tunnel in a cluster.

A request that is recognized is approved when its form is right and its requester is entitled to
it: a server's certificate for the service account of servers, and a node's certificate for that
node alone, be it its kubelet or the agent's pod on it. What hubs get is in
:mod:`yurttunnel.pki.hub_approval`. Everything else is left alone, and never denied: somebody else
may approve it.

Nothing here asks the API; what has to be known beside the request is handed in.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from yurttunnel.cluster.fields import mapping, objects, text
from yurttunnel.cluster.nodes import MOST_ADDRESSES
from yurttunnel.http.authority import Address, address_in
from yurttunnel.kube.resources import Object
from yurttunnel.pki.approval_decision import (
    MOST_FURTHER_NAMES,
    Decision,
    Facts,
    LeftAlone,
    Lookups,
    Reason,
)
from yurttunnel.pki.approval_requests import Kind, Request
from yurttunnel.pki.certificate_template import NODE_USER_PREFIX, NODES_ORGANIZATION
from yurttunnel.pki.cluster_identity import node_named_by
from yurttunnel.pki.hub_approval import KINDS, decide_hub, hub_lookups, organization_fault
from yurttunnel.pki.issuer import CLIENT_AUTH, SERVER_AUTH
from yurttunnel.pki.names import NODE_ORGANIZATION, BadIdentity, is_cluster_node_name

SERVER_ACCOUNT = "yurt-tunnel-server"
AGENT_ACCOUNT = "yurt-tunnel-agent"
"""The service accounts, in the tunnel's namespace."""

# Of k8s.io/apiserver pkg/authentication/serviceaccount util.go: what the API notes of a token
# that is bound to a pod. Those of the node are there since Kubernetes 1.30 (KEP-4193).
_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
_NODE_NAME = "authentication.kubernetes.io/node-name"
_NODE_UID = "authentication.kubernetes.io/node-uid"

_ORGANIZATIONS = {
    Kind.SERVING: NODES_ORGANIZATION,
    Kind.PROXY_CLIENT: NODE_ORGANIZATION,
    Kind.AGENT: NODE_ORGANIZATION,
}
"""What the others than hubs are members of."""
_FOR_SERVERS = (Kind.SERVING, Kind.HUB_SERVING)
_SIGNATURE, _ENCIPHERMENT = "digital signature", "key encipherment"


def lookups(request: Request, namespace: str) -> Lookups:
    """Return what has to be known about the node that a request names, and of its requester."""
    if request.kind in KINDS:
        return hub_lookups(request)
    if request.kind is not Kind.AGENT or request.fault:
        return Lookups()
    try:
        node = node_named_by(request.common_name, request.dns_names)
    except BadIdentity:
        return Lookups()
    requester = request.requester
    is_agent = requester.username == _service_account(namespace, AGENT_ACCOUNT)
    is_pod_needed = is_agent and requester.only(_NODE_NAME) is None
    further = _further_names(request, node)
    return Lookups(
        node,
        requester.only(_POD_NAME) if is_pod_needed else None,
        tuple(filter(is_cluster_node_name, further)) if len(further) <= MOST_FURTHER_NAMES else (),
    )


def decide(request: Request, facts: Facts) -> Decision:
    """Decide about a request; ``facts`` have what :func:`lookups` asks for."""
    try:
        _check_form(request)
        if request.kind in KINDS:
            return decide_hub(request, facts)
        if request.kind is Kind.AGENT:
            return _decide_agent(request, facts)
        return _decide_server(request, facts.namespace)
    except LeftAlone as left:
        return left.decision


def _check_form(request: Request) -> None:
    if request.fault:
        raise LeftAlone(Reason.MALFORMED, f"is left alone: {request.fault}")
    fault = _organization_fault(request)
    if fault is not None:
        raise LeftAlone(Reason.ORGANIZATION, f"is left alone: {fault}")
    purpose = SERVER_AUTH if request.kind in _FOR_SERVERS else CLIENT_AUTH
    # Since Kubernetes 1.27 kubelets leave key encipherment out for keys that have no use for it.
    if request.usages - {_ENCIPHERMENT} != {_SIGNATURE, purpose}:
        raise LeftAlone(
            Reason.USAGES,
            f"is left alone: its usages are {_listed(request.usages)}, and those of"
            f" {_described(request)} are {_listed([_SIGNATURE, _ENCIPHERMENT, purpose])}",
        )
    if request.key_fault:
        raise LeftAlone(Reason.KEY, f"is left alone: {request.key_fault}")


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
            raise LeftAlone(
                Reason.OTHER_INSTALLATION,
                f"is left to another installation of the tunnel: {_quoted(requester)} asks for"
                f" {_described(request)}, and the servers of this installation are {entitled}",
            )
        raise LeftAlone(
            Reason.REQUESTER,
            f"is left alone: {_quoted(requester)} asks for"
            f" {_described(request)}, which only {entitled} gets. If this is a server of yours,"
            f" have its pods use the service account {SERVER_ACCOUNT} in {namespace}; otherwise"
            " find out who that is",
        )
    names = [*request.dns_names, *map(str, request.addresses)]
    if request.kind is Kind.SERVING and not names:
        raise LeftAlone(Reason.NAMES, "is left alone: it names no host and no address")
    if request.kind is Kind.PROXY_CLIENT and names:
        raise LeftAlone(
            Reason.NAMES,
            f"is left alone: it is for {_listed(names)}, but {_described(request)} has no such"
            " names: with them it would be that of a node",
        )
    return Decision(f"is for {_described(request)}, requested by {entitled}")


def _decide_agent(request: Request, facts: Facts) -> Decision:
    try:
        node = node_named_by(request.common_name, request.dns_names)
    except BadIdentity as error:
        raise LeftAlone(Reason.NAMES, f"is left alone: {error}") from None
    _check_requester(request, node, facts)
    if facts.node is None:
        raise LeftAlone(
            Reason.UNKNOWN_NODE,
            f"is left alone: there is no node {node}. It is looked at again: let its kubelet"
            " register it, or see which name the agent is started with (--node-name)",
        )
    _check_names(request, node, facts)
    requester = request.requester.username
    return Decision(f"is for the agent of node {node}, requested by {requester} for that node")


def _check_requester(request: Request, node: str, facts: Facts) -> None:
    requester = request.requester
    if requester.username == f"{NODE_USER_PREFIX}{node}" and NODES_ORGANIZATION in requester.groups:
        return
    account = _service_account(facts.namespace, AGENT_ACCOUNT)
    if requester.username != account:
        raise LeftAlone(
            Reason.REQUESTER,
            f"is left alone: {_quoted(requester.username)} asks for the certificate of node"
            f" {node}, which only that node's kubelet ({NODE_USER_PREFIX}{node} of"
            f" {NODES_ORGANIZATION}) and the agent's pod on it ({account}) get. If it is node"
            f" {node}, have its agent use one of these; otherwise find out who that is",
        )
    bound = _bound_node(request, facts)
    if bound != node:
        raise LeftAlone(
            Reason.REQUESTER,
            f"is left alone: {account} on node {bound} asks for the certificate of node {node}."
            " See which name the agent there is started with (--node-name), or whether that node"
            " is in foreign hands",
        )


def _bound_node(request: Request, facts: Facts) -> str:
    """Return the node that the token of the agent's service account is bound to."""
    requester = request.requester
    node, pod = requester.only(_NODE_NAME), requester.only(_POD_NAME)
    if node is not None:
        _check_uid("node", node, requester.only(_NODE_UID), facts.node)
        return node
    if pod is None:
        raise LeftAlone(
            Reason.UNBOUND_TOKEN,
            f"is left alone: the token of {requester.username} is not bound to a pod, so it says"
            " nothing of the node. Have the agent use the token that is projected into its pod,"
            " and not one of a Secret",
        )
    if facts.pod is None:
        raise LeftAlone(
            Reason.UNBOUND_TOKEN,
            f"is left alone: the pod {pod} that the token of {requester.username} is bound to is"
            f" not in {facts.namespace} any more. Its successor asks for a certificate itself",
        )
    _check_uid("pod", pod, requester.only(_POD_UID), facts.pod)
    scheduled = mapping(facts.pod.get("spec")).get("nodeName")
    if not isinstance(scheduled, str) or not scheduled:
        raise LeftAlone(Reason.UNBOUND_TOKEN, f"is left alone: the pod {pod} is on no node yet")
    return scheduled


def _check_uid(kind: str, name: str, uid: str | None, found: Object | None) -> None:
    """Raise unless an object is the very one that a token was issued for."""
    metadata = mapping(None if found is None else found.get("metadata"))
    if uid is not None and metadata.get("name") == name and metadata.get("uid") != uid:
        raise LeftAlone(
            Reason.UNBOUND_TOKEN,
            f"is left alone: its token is bound to a {kind} {name} that is gone, and another has"
            " that name now. Restart the agent's pod",
        )


def _check_names(request: Request, node: str, facts: Facts) -> None:
    """Raise unless a node has all the names and addresses that are asked for, and alone.

    What it has is in its object, in a field that its kubelet writes. So no kubelet is believed
    that it has the name of another node, by which callers would come to it.
    """
    hosts, addresses = _names_of(node, facts.node or {})
    further = _further_names(request, node)
    if len(further) > MOST_FURTHER_NAMES:
        raise LeftAlone(
            Reason.NAMES,
            f"is left alone: it is for {len(further)} host names beside {node}, and more than"
            f" {MOST_FURTHER_NAMES} are not looked up. Leave them out of --agent-identifiers",
        )
    foreign_hosts = [host for host in further if host not in hosts]
    foreign = [str(address) for address in request.addresses if address not in addresses]
    if foreign_hosts or foreign:
        raise LeftAlone(
            Reason.NAMES,
            f"is left alone: {_listed([*foreign_hosts, *foreign])} is not of node {node}, whose"
            f" names and addresses are {_listed([*hosts, *map(str, addresses)])} (kubectl get node"
            f" {node} -o jsonpath='{{.status.addresses}}'). {_advice(foreign_hosts, foreign)}",
        )
    others = sorted(facts.other_nodes.intersection(further))
    if others:
        raise LeftAlone(
            Reason.OTHER_NODE,
            f"is left alone: {_listed(others)} is the name of another node, so node {node} cannot"
            f" have it, whatever its kubelet reports (kubectl get node {node} -o"
            " jsonpath='{.status.addresses}'). If one machine was registered twice, delete the"
            f" node that is no more; otherwise see whether node {node} is in foreign hands",
        )


def _advice(hosts: list[str], addresses: list[str]) -> str:
    """Return what to do about foreign ones, of which there are some."""
    sentences = []
    if addresses:
        # An agent is told its address when its pod starts, and nobody tells it of another one.
        sentences.append(
            "If the node has got another address (DHCP), restart the agent's pod, so that its"
            " --node-ip is the new one; otherwise set --node-ip to an address of the node"
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
    """Return whether it is the service account ``name`` of any namespace."""
    prefix, _, account = username.rpartition(":")
    return account == name and prefix.startswith("system:serviceaccount:")


def _quoted(text: str) -> str:
    # Names are any text, and this is for logs and terminals.
    return ascii(text[:253])


def _listed(texts: Iterable[str]) -> str:
    several = sorted(texts)
    shown = ", ".join(_quoted(each) for each in several[:10])
    more = f" and {len(several) - 10} more" if len(several) > 10 else ""
    return shown + more or "none"


def _further_names(request: Request, node: str) -> list[str]:
    """List the host names beside the node's own that a request asks for, each once."""
    return sorted(set(request.dns_names) - {node})


def _names_of(node: str, found: Object) -> tuple[set[str], set[Address]]:
    """Read ``status.addresses`` of a ``Node``, of whatever type they are.

    The name of the node is always one of them. What is no host name that a certificate of a node
    can have, such as one with a wildcard, is none of them.
    """
    hosts, addresses = {node}, set[Address]()
    reported = objects(mapping(found.get("status")).get("addresses"))
    for each in islice(reported, MOST_ADDRESSES):
        name = text(each.get("address"))
        if (address := address_in(name)) is not None:
            addresses.add(address)
        elif is_cluster_node_name(name.lower()):
            hosts.add(name.lower())
    return hosts, addresses
