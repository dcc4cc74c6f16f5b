"""The tunnel protocol, without input or output: bytes and times in, bytes and events out.

``docs/protocol.md`` is the specification. From the outside in:

- :mod:`~yurttunnel.wire.session`: the session state machine, the one thing that users drive, and
  :mod:`~yurttunnel.wire.session_events`: what it tells them;
- :mod:`~yurttunnel.wire.hello`: the first frame of each connection, and its limits;
- :mod:`~yurttunnel.wire.stream_table`, :mod:`~yurttunnel.wire.stream`: the streams of a session
  and their numbers, and one stream;
- :mod:`~yurttunnel.wire.send_queue`: what waits to be sent, with :mod:`~yurttunnel.wire.scheduler`
  for who sends next, :mod:`~yurttunnel.wire.send_log` for what is kept until acknowledged and
  :mod:`~yurttunnel.wire.bdp_estimate` for how much that may be, by the rate of the path and its
  :mod:`~yurttunnel.wire.round_trip`;
- :mod:`~yurttunnel.wire.receiver`: what has come and what credit is due for it, with
  :mod:`~yurttunnel.wire.credit` for windows and the memory behind them;
- :mod:`~yurttunnel.wire.flood`, :mod:`~yurttunnel.wire.liveness`: whether the peer sends more
  than it needs to, and whether it is there;
- :mod:`~yurttunnel.wire.parser`, :mod:`~yurttunnel.wire.frames`,
  :mod:`~yurttunnel.wire.codes`: bytes into frames, frames into bytes, and the reasons in them.
"""
