"""Records by which callers that ask for nodes by name come to the server."""
