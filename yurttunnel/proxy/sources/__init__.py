"""The sources of Services and EndpointSlices: the API, and files."""
