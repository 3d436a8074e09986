"""Texts of programs that run on a host before, or without, anything of ours being there; see ``host.call``."""
