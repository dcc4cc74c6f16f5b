from yurttunnel.ops.program import ProgramMaker

yurttunnel_agent = ProgramMaker(
    "yurttunnel agent",
    "yurttunnel.agent.command",
    "The edge end of the tunnel: dials out to the server and reaches the targets of its node.",
    "yurttunnel-agent",
)
