from yurttunnel.ops.program import ProgramMaker

yurtproxy = ProgramMaker(
    "yurtproxy",
    "yurttunnel.proxy.command",
    "Services on an edge node, in the place of kube-proxy, with retry.",
    "yurtproxy",
)
