"""The tunnel protocol, without I/O: bytes and times in, bytes and events out.

``docs/protocol.md`` is the specification. From the outside in:

- :mod:`~yurttunnel.wire.session`: the session state machine, the only part that users call, and
  :mod:`~yurttunnel.wire.session_events`: the events that it reports to them;
- :mod:`~yurttunnel.wire.hello`: the first frame of each connection, and its limits;
- :mod:`~yurttunnel.wire.stream_table`, :mod:`~yurttunnel.wire.stream`: the streams of a session
  and their numbers, and one stream;
- :mod:`~yurttunnel.wire.send_queue`: the frames to be sent, with
  :mod:`~yurttunnel.wire.scheduler` for their order, :mod:`~yurttunnel.wire.send_log` for
  unacknowledged data, :mod:`~yurttunnel.wire.bdp_estimate` for its limit, and
  :mod:`~yurttunnel.wire.round_trip` for the round-trip time;
- :mod:`~yurttunnel.wire.receiver`: received data and the credit that is due for it, with
  :mod:`~yurttunnel.wire.credit` for windows and the memory behind them;
- :mod:`~yurttunnel.wire.flood`, :mod:`~yurttunnel.wire.liveness`: detection of a peer that sends
  too many frames, and of a dead peer;
- :mod:`~yurttunnel.wire.parser`, :mod:`~yurttunnel.wire.frames`,
  :mod:`~yurttunnel.wire.codes`: parsing of frames, their encoding, and the codes in them.
"""
