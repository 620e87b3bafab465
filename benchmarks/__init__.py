"""Benchmarks: each prints ratios to a peer measured in the same run."""
