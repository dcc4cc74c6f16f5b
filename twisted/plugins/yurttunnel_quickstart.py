from yurttunnel.ops.program import ProgramMaker

yurttunnel_quickstart = ProgramMaker(
    "yurttunnel quickstart",
    "yurttunnel.quickstart.command",
    "Everything on one machine: a Kubernetes API, the tunnel and an edge node, for kubectl.",
    "yurttunnel-quickstart",
)
