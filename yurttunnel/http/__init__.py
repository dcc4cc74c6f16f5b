"""HTTP/1.1 as a proxy needs it: heads, authorities and error answers."""
