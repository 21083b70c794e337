"""The version of the distribution, which all its packages have."""

__version__ = "0.1.0"
