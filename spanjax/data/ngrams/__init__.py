"""N-gram dictionaries for span masking: counting, segmentation, layouts."""
