"""Rows to masked batches: order, host slices, pairing, masking, the feeds of tf.data and NumPy."""
