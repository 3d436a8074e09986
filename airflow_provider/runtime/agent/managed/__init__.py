"""What the agent knows of managed tasks: those whose jobs it runs or ran, and those that are only registered."""
