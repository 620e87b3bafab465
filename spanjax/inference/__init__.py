"""Inference with trained models: mask filling, tasks."""
