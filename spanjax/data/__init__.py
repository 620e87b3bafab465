"""Text to batches; never imports jax."""
