"""The edge end of the tunnel: keeps sessions to the servers and connects to what they ask for."""
