"""The protocols by which clients stream to a pod: SPDY/3.1 and WebSocket."""
