"""Training objectives: each is a module around the encoder and its loss terms."""
