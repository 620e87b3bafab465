"""Reads and writes weights and folders of PyTorch and Hugging Face without either."""
