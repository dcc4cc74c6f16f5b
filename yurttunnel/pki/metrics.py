"""Statistics and metrics of certificates in a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from yurttunnel.metrics import Metric, counter, gauge


@dataclass(slots=True)
class RequestCounters:
    """The results of the requests for one certificate, since the process started."""

    issued: int = 0
    denied: int = 0
    failed: int = 0


@dataclass(slots=True)
class CommonCertificateCounters:
    """Counts of the HELLOs with certificates of agents of yurttunnel 1.2, by result."""

    accepted: int = 0
    refused: int = 0


@dataclass(slots=True)
class ClusterTrustStats:
    """All statistics; ``requests`` are by the name of the certificate.

    ``broken_bundle`` is whether the cluster's authorities cannot be read at present.
    ``common_certificates`` is ``None`` for an agent, which never receives one.
    """

    requests: Mapping[str, RequestCounters]
    broken_bundle: bool = False
    common_certificates: CommonCertificateCounters | None = None


def cluster_trust_metrics(prefix: str) -> tuple[Metric[ClusterTrustStats], ...]:
    """Declare the metrics, whose names begin with ``prefix``, such as ``yurttunnel_agent_``."""
    return (
        counter(
            f"{prefix}certificate_requests",
            "CertificateSigningRequests of this process by certificate and result. issued: the"
            " certificate is in use. denied: the request was denied, or its signer rejected it."
            " failed: the API was unreachable, the request was not approved or signed within 15"
            " minutes, or the signer issued something else; the log has the reason. All are"
            " retried at least every 32 seconds.",
            lambda stats: (
                ((name, result), count)
                for name, counters in sorted(stats.requests.items())
                for result, count in (
                    ("issued", counters.issued),
                    ("denied", counters.denied),
                    ("failed", counters.failed),
                )
            ),
            "certificate",
            "result",
        ),
        gauge(
            f"{prefix}authorities_broken",
            "1 while the bundle of the cluster's authorities cannot be read or used. The previous"
            " ones stay in use; repair it before the cluster changes its authority.",
            lambda stats: int(stats.broken_bundle),
        ),
        counter(
            f"{prefix}common_agent_certificates",
            "Sessions opened, resumed or attempted with the common certificate of yurttunnel 1.2,"
            " which all agents can get and which does not identify a node. If any are accepted:"
            " upgrade the agents of the nodes that the log names, then start the server without"
            " --accept-common-agent-certificates.",
            lambda stats: _by_result(stats.common_certificates),
            "result",
        ),
    )


def _by_result(counters: CommonCertificateCounters | None) -> tuple[tuple[str, int], ...] | None:
    if counters is None:
        return None
    return (("accepted", counters.accepted), ("refused", counters.refused))
