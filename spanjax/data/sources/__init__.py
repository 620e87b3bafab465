"""Corpus files and their documents: text, JSON lines, Parquet, TFDS."""
