"""Where Services and EndpointSlices come from: the API, and files."""
