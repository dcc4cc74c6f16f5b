from twisted.application.service import ServiceMaker

yurttunnel_quickstart = ServiceMaker(
    "yurttunnel quickstart",
    "yurttunnel.quickstart.command",
    "Everything on one machine: a Kubernetes API, the tunnel and an edge node, for kubectl.",
    "yurttunnel-quickstart",
)
