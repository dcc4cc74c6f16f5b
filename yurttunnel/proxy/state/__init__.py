"""What is wanted: virtual services, made of Services, EndpointSlices and facts of the node."""
