"""Tests of the whole project: public names, packaging, events, documentation."""
