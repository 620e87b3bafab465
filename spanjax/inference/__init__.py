"""Inference with trained models: vectors of texts, mask filling, tasks."""
