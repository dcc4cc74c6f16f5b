"""The firewall rules that lead portals to where they are served."""
