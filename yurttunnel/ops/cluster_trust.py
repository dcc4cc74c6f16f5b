"""What trust in a cluster counts, and how a scrape shows it; see :mod:`yurttunnel.ops.metrics`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from yurttunnel.ops.families import CounterMetricFamily, GaugeMetricFamily, MetricFamily


@dataclass(slots=True)
class RequestCounters:
    """How the requests for one certificate have ended, since the process started."""

    issued: int = 0
    denied: int = 0
    failed: int = 0


@dataclass(slots=True)
class CommonCertificateCounters:
    """What came of the certificates of agents of yurttunnel 1.2, by HELLO."""

    accepted: int = 0
    refused: int = 0


@dataclass(slots=True)
class ClusterTrustStats:
    """All of it: ``requests`` by the name of the certificate.

    ``broken_bundle`` says that the cluster's authorities cannot be read at present.
    ``common_certificates`` are ``None`` for an agent, to which nobody shows one.
    """

    requests: Mapping[str, RequestCounters]
    broken_bundle: bool = False
    common_certificates: CommonCertificateCounters | None = field(default=None)


def cluster_trust_families(prefix: str, stats: ClusterTrustStats) -> Iterator[MetricFamily]:
    """Yield the families of metrics, whose names begin with ``prefix``: ``yurttunnel_agent_``."""
    requests = CounterMetricFamily(
        f"{prefix}certificate_requests",
        "CertificateSigningRequests of this process that have ended, by certificate. issued: the "
        "certificate is in use. denied: somebody has denied the request, or its signer has "
        "refused it. failed: the API was out of reach, nobody has approved or signed it in 15 "
        "minutes, or the signer issued something else; the log has the sentence. All are tried "
        "again at least every 32 seconds.",
        labels=["certificate", "result"],
    )
    for name, counters in sorted(stats.requests.items()):
        requests.add_metric([name, "issued"], counters.issued)
        requests.add_metric([name, "denied"], counters.denied)
        requests.add_metric([name, "failed"], counters.failed)
    yield requests
    yield GaugeMetricFamily(
        f"{prefix}authorities_broken",
        "1 while the bundle of the cluster's authorities cannot be read or used. Those from "
        "before stay in use; mend it before the cluster changes its authority.",
        int(stats.broken_bundle),
    )
    if stats.common_certificates is not None:
        yield _common(prefix, stats.common_certificates)


def _common(prefix: str, counters: CommonCertificateCounters) -> MetricFamily:
    family = CounterMetricFamily(
        f"{prefix}common_agent_certificates",
        "Sessions begun or resumed, or asked for, with a certificate that all agents of "
        "yurttunnel 1.2 can get and that says nothing of its node. Any accepted ones: upgrade "
        "the agents of the nodes that the log names, then start the server without "
        "--accept-common-agent-certificates.",
        labels=["result"],
    )
    family.add_metric(["accepted"], counters.accepted)
    family.add_metric(["refused"], counters.refused)
    return family
