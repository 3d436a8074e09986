"""Operators, and the task group that makes a chain of them."""
