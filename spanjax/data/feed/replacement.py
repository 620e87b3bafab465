"""What is put in the place of masked tokens, and which of them have span boundaries: settings that every policy shares."""

import dataclasses
from collections.abc import Mapping
from typing import Literal


def refuse(what: str, problems: Mapping[str, bool]) -> None:
    """Raises one ValueError that lists every problem that is true."""
    found = [problem for problem, wrong in problems.items() if wrong]
    if found:
        raise ValueError(f"{what}: " + "; ".join(found))


@dataclasses.dataclass(frozen=True)
class Replacement:
    """What stands in the place of a masked token: [MASK], a token drawn from the corpus unigram distribution, or itself
    (D13)."""

    mask: float = 0.8
    """Probability of [MASK]."""
    random: float = 0.1
    """Probability of a random token; the rest is kept."""
    unit: Literal["span", "token"] = "span"
    """Whether one draw decides for a whole span (SpanBERT) or for each token (BERT)."""
    unknown: bool = False
    """Draws [UNK] among the random tokens, as often as the text has it: as released (D13). False never draws it."""

    def __post_init__(self) -> None:
        refuse(
            "Replacement",
            {
                f"mask is {self.mask}: expected a probability from 0 to 1": not 0 <= self.mask <= 1,
                f"random is {self.random}: expected a probability from 0 to 1": not 0 <= self.random <= 1,
                f"mask + random is {self.mask + self.random}: expected at most 1, lower one": self.mask + self.random
                > 1 + 1e-9,
                f"unit is {self.unit!r}: expected 'span' or 'token'": self.unit not in ("span", "token"),
                "unknown is True and random 0: expected random tokens, raise random or leave unknown out": self.unknown
                and not self.random,
            },
        )


@dataclasses.dataclass(frozen=True)
class Boundaries:
    """Which masked tokens have the two boundary tokens that the span boundary objective reads (D5)."""

    specials: bool = True
    """Whether [CLS] or [SEP] may be a boundary: the paper has every masked token in the loss, the released code drops
    spans at a block's edge."""
    max_offset: int = 15
    """Tokens at this offset and further inside their span have no boundary."""

    def __post_init__(self) -> None:
        refuse("Boundaries", {f"max_offset is {self.max_offset}: expected at least 1": self.max_offset < 1})
