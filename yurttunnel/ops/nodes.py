"""What a scrape shows of the nodes that are not reached by the tunnel; see ``ops.metrics``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from yurttunnel.ops.families import GaugeMetricFamily, MetricFamily


def cloud_node_families(cloud_addresses: Callable[[], int]) -> Iterator[MetricFamily]:
    """Yield the families of metrics; the name is that of yurttunnel 1.2."""
    yield GaugeMetricFamily(
        "yurttunnel_server_cloud_nodes_counter",
        "Nodes that are ready and not reached by the tunnel, counted by their first InternalIP: "
        "those without a label openyurt.io/is-edge-worker or "
        "openyurt.io/edge-enable-reverseTunnel-client that is true. 0 with a control plane that "
        "has nodes: the API was out of reach since the server started (/readyz), or these nodes "
        "are labeled as edge nodes or not ready (kubectl get nodes --show-labels).",
        cloud_addresses(),
    )
