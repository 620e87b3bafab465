"""The model: jax and flax, and nothing else of ours."""
