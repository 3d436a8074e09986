"""Reaching an agent: channels, and later the tunnels that carry them."""
