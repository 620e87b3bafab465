"""A block: consecutive text of one document that becomes [CLS] text [SEP], with what is known of its tokens.

Flags, one byte a token: bit 0 where a sentence begins; two bits for each of up to three tag layers (entities, say), above
it: 0 outside, 1 where a tagged span begins, 2 where it goes on.
"""

import dataclasses

import numpy as np

MOST_LAYERS = 3
SENTENCE_START = np.uint8(1)


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """n text tokens of a document, special tokens not among them; `len(block)` is n."""

    ids: np.ndarray
    """int32 [n]."""
    flags: np.ndarray
    """uint8 [n], see the module."""
    document: int
    """Number of the document among those of its shard; becomes its number among all."""

    def __len__(self) -> int:
        return len(self.ids)


def layer_tags(flags: np.ndarray, layer: int) -> np.ndarray:
    """Tags of one layer of flags of any shape: uint8, 0 outside, 1 where a tagged span begins, 2 where it goes on."""
    return (flags >> np.uint8(1 + 2 * layer)) & np.uint8(3)


def tag_flags(tags: np.ndarray, layer: int) -> np.ndarray:
    """`layer_tags` the other way: flags with the tags (0, 1, 2) of one layer."""
    return tags.astype(np.uint8) << np.uint8(1 + 2 * layer)
