"""The desired state: virtual services, from Services, EndpointSlices and facts of the node."""
