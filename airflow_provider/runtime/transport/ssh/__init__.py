"""SSH: connections that are shared, and tunnels to an agent's socket."""
