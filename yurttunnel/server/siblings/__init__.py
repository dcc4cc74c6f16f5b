"""The other replicas of this server: found by the API, and asked for the nodes that they have.

Each server dials each of its siblings and holds one session with it, by the same protocol as
agents do (``docs/protocol.md``, "Siblings"). Over it the sibling says with which nodes it has
sessions, and connects to what these reach. A sibling uses only its own sessions for that, so
nothing goes round in circles.
"""
