from twisted.application.service import ServiceMaker

yurttunnel_agent = ServiceMaker(
    "yurttunnel agent",
    "yurttunnel.agent.command",
    "The edge end of the tunnel: dials out to the server and reaches the targets of its node.",
    "yurttunnel-agent",
)
