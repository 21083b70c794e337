"""Benchmarks: each prints ratios of variants that ran side by side, never figures of one machine alone."""
