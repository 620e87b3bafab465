"""Weights and folders of PyTorch and Hugging Face, read and written without either."""
