"""The state of the cluster: its nodes, pods, Services and the ports to intercept."""
