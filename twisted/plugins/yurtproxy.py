from twisted.application.service import ServiceMaker

yurtproxy = ServiceMaker(
    "yurtproxy",
    "yurttunnel.proxy.command",
    "Services on an edge node, in the place of kube-proxy, with retry.",
    "yurtproxy",
)
