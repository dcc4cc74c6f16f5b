"""The siblings, the other replicas of this server: discovered by the API, and used for their nodes.

Each server dials each of its siblings and keeps one session with it, over the same protocol as
agents (``docs/protocol.md``, "Siblings"). Over it the sibling reports the nodes with which it has
sessions, and opens streams to targets at them. For these it uses only its own sessions, so requests
cannot loop.
"""
