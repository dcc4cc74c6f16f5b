from twisted.application.service import ServiceMaker

yurttunnel_server = ServiceMaker(
    "yurttunnel server",
    "yurttunnel.server.command",
    "The cloud end of the tunnel: takes in agents and carries requests to their nodes.",
    "yurttunnel-server",
)
