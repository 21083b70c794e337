"""A project that uses the public names. It is checked, and not run.

A line that must be refused ends with the code that mypy gives to its error, and pyright's rule.
"""
