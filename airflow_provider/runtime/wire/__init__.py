"""The agent protocol: messages and the table of RPCs."""
