"""Triggers: one per try, from launch to clean-up."""
