"""Manifest of a folder of packed rows, and the number of prediction slots that follows from it."""

import dataclasses
import fractions
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from spanjax import __version__
from spanjax.data.sources.paths import is_file_name
from spanjax.json_files import parse_json

FORMAT = 2


class Shard(NamedTuple):
    """A file of rows."""

    name: str
    rows: int
    sha256: str  # of the file


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Description of a folder of rows; `manifest.json` on disk."""

    format: int
    fingerprint: (
        str  # of the rows' bytes, their shape and the vocabulary: equal when and only when the rows are the same
    )
    length: int
    rows: int
    shards: tuple[Shard, ...]
    vocabulary_fingerprint: str
    vocabulary_size: int
    max_blocks: int
    source: str
    code_version: str
    documents: int
    sentences: int
    text_tokens: int  # without [CLS], [SEP] and padding
    words: int
    unknown_tokens: int
    blocks: int
    fill: float  # used positions, specials included, of all positions
    skipped: dict[str, int]
    unigram_entropy: float  # nats, of these text tokens' own distribution
    text_tokens_by_blocks: tuple[int, ...]  # [m]: most text tokens of any row with m blocks
    tags: tuple[str, ...]  # names of the tag layers, in the order of the flags
    settings: dict[str, Any]  # of prepare: cleaning, holding out, removing duplicates

    @classmethod
    def from_json(cls, text: str | bytes, name: str) -> "Manifest":
        """Parses manifest.json; ValueError where the format is another or a field is missing."""
        try:
            fields = parse_json(text, dict)
        except ValueError:
            raise ValueError(f"{name} is not a manifest of rows; prepare the rows again") from None
        if (found := fields.get("format")) != FORMAT:
            raise ValueError(
                f"{name} has format {found}, this spanjax {__version__} reads {FORMAT}; prepare the rows again"
            )
        expected = {field.name for field in dataclasses.fields(cls)}
        if set(fields) != expected:
            raise ValueError(f"{name}: wrong fields {sorted(set(fields) ^ expected)}; prepare the rows again")
        if problems := _problems(fields):
            raise ValueError(f"{name}: {'; '.join(problems)}; prepare the rows again")
        fields["shards"] = tuple(Shard(*shard) for shard in fields["shards"])
        fields["text_tokens_by_blocks"] = tuple(fields["text_tokens_by_blocks"])
        fields["tags"] = tuple(fields["tags"])
        return cls(**fields)


def _problems(fields: Mapping[str, Any]) -> list[str]:
    """Problems with the types of a manifest's fields, and with the names in it, as text."""
    kinds = {"int": int, "float": (int, float), "str": str, "dict": dict, "tuple": list}
    found = []
    for field in dataclasses.fields(Manifest):
        kind = str(getattr(field.type, "__name__", field.type)).partition("[")[0]
        value = fields[field.name]
        if not isinstance(value, kinds[kind]) or isinstance(value, bool):
            found.append(f"{field.name} is {value!r:.60}, expected {kind}")
        elif kind == "int" and value < 0:
            found.append(f"{field.name} is {value}, expected 0 or more")
    for shard in fields["shards"] if isinstance(fields["shards"], list) else ():
        if not isinstance(shard, list) or [type(each) for each in shard] != [str, int, str]:
            found.append(f"a shard is {shard!r:.60}, expected [NAME, ROWS, SHA256]")
        elif not is_file_name(shard[0]):
            found.append(f"a shard is called {shard[0]!r:.60}, expected a file name without a path")
        elif shard[1] < 1:
            found.append(f"{shard[0]} has {shard[1]} rows, expected 1 or more")
    return found


def slots_needed(manifest: Manifest, rate: float, parts: int = 1) -> int:
    """K, a multiple of 8: the most tokens any row masks when a part of n text tokens masks at most ceil(rate * n).

    A block is masked in `parts` parts (the two segments of a pair). For m parts of N tokens in all, the sum of ceil(n p/q) is
    at most floor(N p/q + m (q-1)/q), and equal for m = 1.
    The larger result for the decimal `rate` and for its float counts, since 0.55 * 100 rounds up to 56 in floating point.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"rate is {rate}: expected more than 0 and at most 1")
    most = 1
    for exact in (fractions.Fraction(str(rate)), fractions.Fraction(float(rate))):
        rest = 1 - fractions.Fraction(1, exact.denominator)
        for blocks, tokens in enumerate(manifest.text_tokens_by_blocks):
            if tokens:
                most = max(most, min(tokens, math.floor(exact * tokens + parts * blocks * rest)))
    return -(-most // 8) * 8
