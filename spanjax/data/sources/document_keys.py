"""What a document is recognised by: its content, wherever it stands in the input.

Exact duplicates share a key, and a share of documents is held out by their content, so that copies of one text land on the
same side and more input leaves the others where they are.
"""

import hashlib

KEY_BYTES = 16


def content_key(text: str) -> bytes:
    """16 bytes that are equal for texts that are equal but for surrounding whitespace (BLAKE2b of the UTF-8)."""
    return hashlib.blake2b(text.strip().encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()


def held_out(text: str, share: float) -> bool:
    """Whether a document belongs to the held-out `share`, 0 to 1, of all documents; its content alone decides.

    What a smaller share holds out, a larger one does too.
    """
    return int.from_bytes(content_key(text)[:8], "big") < share * 2.0**64
