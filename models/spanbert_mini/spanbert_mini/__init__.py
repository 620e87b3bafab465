"""Weights of spanbert-mini: `spanjax.load("spanbert-mini")`, or transformers' `from_pretrained(spanbert_mini.FOLDER)`."""

import pathlib

FOLDER = pathlib.Path(__file__).parent / "model"
"""A folder as transformers saves it: configuration, weights of the encoder and both heads, tokenizer."""
