"""Which endpoint a new connection goes to: one after the other, fewest connections, affinity.

Endpoints that cannot be reached are left out for a while (passive ejection), as their dials tell.
"""
