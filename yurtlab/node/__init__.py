"""An edge node that runs pods as processes of this machine."""
