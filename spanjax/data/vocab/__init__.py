"""Vocabularies: WordPiece, SentencePiece, byte-level BPE; training, loading and comparing them."""
