"""How a cluster ends by itself: idle time, hooks, the end."""
