"""Documents to shards of packed rows, in parallel, and their manifest."""
