"""Encoder sizes by their usual names."""

import dataclasses

from spanjax.nn.encoder import EncoderConfig

BASE = EncoderConfig()
"""BERT base: 12 layers of 768."""

LARGE = dataclasses.replace(BASE, hidden_size=1024, layers=24, heads=16, intermediate_size=4096)
"""BERT large: 24 layers of 1024."""
