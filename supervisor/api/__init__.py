"""What a daemon answers over its unix socket, and the server that asks it."""
