"""Further processes of one server that carry sessions, each for its share of the nodes."""
