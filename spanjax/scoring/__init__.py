"""The official metrics: plain Python values in, scores out; no jax, nothing heavy is imported.

Every score is in percent, as the official scripts and the papers print it; p-values are probabilities. Wrong input raises
one ValueError that lists every problem. Sums are taken one by one in the order of the input, as the official scripts
take them: the built-in `sum` rounds in another way since Python 3.12.
"""
