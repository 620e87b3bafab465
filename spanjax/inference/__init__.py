"""Trained models in use: filled masks, tasks."""
