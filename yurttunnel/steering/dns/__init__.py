"""DNS records that lead callers that use node names to the server."""
