from yurttunnel.ops.program import ProgramMaker

yurttunnel_server = ProgramMaker(
    "yurttunnel server",
    "yurttunnel.server.command",
    "The cloud end of the tunnel: takes in agents and carries requests to their nodes.",
    "yurttunnel-server",
)
