from yurttunnel.ops.program import ProgramMaker

yurthub = ProgramMaker(
    "yurthub",
    "yurttunnel.hub.command",
    "The node's way to the Kubernetes API, which answers from a cache without the cloud.",
    "yurthub",
)
