"""The evaluation suite: one protocol for every encoder, over any number of sittings."""
