"""Parts of optimizers: forms of Adam, clipping, sample-size normalisation."""
