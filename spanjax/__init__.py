"""spanjax: pretraining and fine-tuning of span-based text encoders (SpanBERT) in JAX and Flax."""

__version__ = "0.1.0"
