"""Infra ``ssh``: clusters are hosts of a pool, taken for a while and given back."""
