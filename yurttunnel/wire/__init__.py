"""The tunnel protocol, without input or output: bytes and times in, bytes and events out.

``docs/protocol.md`` is the specification. From the outside in:

- :mod:`~yurttunnel.wire.session`: the session state machine, the one thing that users drive;
- :mod:`~yurttunnel.wire.hello`: the first frame of each connection, and its limits;
- :mod:`~yurttunnel.wire.stream`: one stream of a session;
- :mod:`~yurttunnel.wire.scheduler`, :mod:`~yurttunnel.wire.send_log`,
  :mod:`~yurttunnel.wire.credit`, :mod:`~yurttunnel.wire.liveness`: who sends next, what is kept
  until acknowledged, how much may be sent, and whether the peer is there;
- :mod:`~yurttunnel.wire.parser`, :mod:`~yurttunnel.wire.frames`,
  :mod:`~yurttunnel.wire.codes`: bytes into frames, frames into bytes, and the reasons in them.
"""
