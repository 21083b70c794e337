"""Tests of status-table mode."""
