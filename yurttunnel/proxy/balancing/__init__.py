"""The selection of endpoints for new connections: round-robin, fewest connections, affinity.

Endpoints whose dials fail are ejected for a while (passive ejection).
"""
