"""Benchmarks. They print ratios of variants that ran side by side, not absolute figures of one machine."""
