"""The edge end of the tunnel: keeps sessions to the servers, and dials the targets they request."""
