"""Operators' views and decisions."""
