"""Maps the historical names of weights to those of the tables.

Known: gamma and beta for LayerNorm (BERT's first PyTorch code), `decoder.` before every name (SpanBERT's archive with heads),
`module.` (data parallel), and an encoder's names without `bert.` (a saved BertModel).
"""

import re
from collections.abc import Mapping
from typing import Any

from spanjax.torch_format.families import FAMILIES, Family

_BARE = (
    *("embeddings.", "embeddings_project.", "encoder.", "pooler.", "layers.", "final_norm."),
    *("word_embedding.", "mask_emb", "layer.", "transformer."),
)
_NORM_NAMES = {"gamma": "weight", "beta": "bias"}


def family_of_names(names: Mapping[str, Any]) -> Family | None:
    """Returns the only family whose prefix some names have, else None; RoBERTa for all that have its names."""
    own = {family.prefix: family for family in reversed([*FAMILIES.values()])}
    found = [family for family in own.values() if any(f".{name}".find(f".{family.prefix}") >= 0 for name in names)]
    return found[0] if len(found) == 1 else None


def known_names(tensors: Mapping[str, Any], family: Family) -> tuple[dict[str, Any], list[str]]:
    """Returns the tensors under the names of the family's table, and human-readable notes on the renaming.

    ValueError if two names become one.
    """
    renamed = {name: name for name in tensors}
    notes = []
    # A prefix counts only if every name has it: `decoder.bias` is also a name of ModernBERT's own.
    for prefix, what in (("module.", "data parallel"), ("decoder.", "SpanBERT's archive with heads")):
        if renamed and all(name.startswith(prefix) for name in renamed.values()):
            renamed = {old: name.removeprefix(prefix) for old, name in renamed.items()}
            notes.append(f"{prefix} taken off every name ({what})")
    norms = {old: re.sub(r"\.(gamma|beta)$", lambda m: f".{_NORM_NAMES[m[1]]}", name) for old, name in renamed.items()}
    if norms != renamed:
        notes.append("gamma and beta are LayerNorm's weight and bias")
    renamed = norms
    if not any(name.startswith(family.prefix) for name in renamed.values()):
        bare = {old: family.prefix + name if name.startswith(_BARE) else name for old, name in renamed.items()}
        if bare != renamed:
            notes.append(f"{family.prefix} put before the encoder's names")
        renamed = bare
    result: dict[str, Any] = {}
    for old, name in renamed.items():
        if name in result:
            raise ValueError(f"two tensors are {name}, one of them named {old}: take one of them out of the file")
        result[name] = tensors[old]
    return result, notes
