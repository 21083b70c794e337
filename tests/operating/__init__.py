"""Tests of what operators see and decide."""
