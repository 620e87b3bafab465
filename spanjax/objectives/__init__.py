"""What can be trained: an objective is a module around the encoder and its loss terms."""
