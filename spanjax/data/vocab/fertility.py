"""Fit of a vocabulary to text: pieces per word, words kept whole, and unknown pieces."""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from spanjax.data.vocab.loading import Vocabulary

_TOGETHER = 512  # sentences encoded at a time


@dataclasses.dataclass
class Fertility:
    """Counts over sentences. A word is a part between blanks, with its punctuation; `lines` reports the figures."""

    sentences: int = 0
    characters: int = 0
    """Visible characters."""
    words: int = 0
    pieces: int = 0
    """Pieces of whole sentences."""
    whole_words: int = 0
    """Words that are one piece on their own."""
    unknown_pieces: int = 0
    unknown_words: int = 0
    """Words with an unknown piece."""
    unknown: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """The parts of the text that became unknown pieces."""

    @property
    def pieces_per_word(self) -> float:
        """Fertility."""
        return self.pieces / max(1, self.words)

    @property
    def unknown_rate(self) -> float:
        """Share of pieces that are unknown."""
        return self.unknown_pieces / max(1, self.pieces)

    def add(self, vocabulary: Vocabulary, texts: Sequence[str]) -> None:
        """Counts more sentences."""
        unk = vocabulary.specials.unk
        words = [text.split() for text in texts]
        distinct = sorted({word for each in words for word in each})
        alone = dict(zip(distinct, vocabulary.encode(distinct), strict=True))
        for text, parts, ids in zip(texts, words, vocabulary.encode(texts), strict=True):
            self.sentences += 1
            self.characters += sum(map(len, parts))
            self.words += len(parts)
            self.pieces += len(ids)
            self.whole_words += sum(len(alone[part]) == 1 and alone[part][0] != unk for part in parts)
            self.unknown_words += sum(unk in alone[part] for part in parts)
            missing = int((ids == unk).sum())
            self.unknown_pieces += missing
            if missing:
                self.unknown.update(unknown_parts(vocabulary, text))

    def lines(self) -> list[str]:
        """The figures as text, a line each."""
        return [
            f"{'sentences':24s}{self.sentences:,}",
            f"{'words':24s}{self.words:,} (parts between blanks)",
            f"{'pieces per word':24s}{self.pieces_per_word:.3f}",
            f"{'characters per piece':24s}{self.characters / max(1, self.pieces):.2f}",
            f"{'words kept whole':24s}{100 * self.whole_words / max(1, self.words):.1f} %",
            f"{'unknown pieces':24s}{100 * self.unknown_rate:.3f} % ({self.unknown_pieces:,})",
            f"{'words with an unknown':24s}{100 * self.unknown_words / max(1, self.words):.3f} % ({self.unknown_words:,})",
        ]

    def unknown_lines(self, most: int = 10) -> list[str]:
        """The most frequent unknown parts of the text with their counts and the code of a single character."""
        return [
            f"{count:8,}  {part[:60]}{'...' if len(part) > 60 else ''}"
            + (f"  U+{ord(part):04X}" if len(part) == 1 else "")
            for part, count in sorted(self.unknown.items(), key=lambda each: (-each[1], each[0]))[:most]
        ]


def unknown_parts(vocabulary: Vocabulary, text: str) -> Iterator[str]:
    """The parts of a sentence that unknown pieces stand for."""
    [(ids, starts)] = vocabulary.encode_with_starts([text])
    ends = [*starts.tolist()[1:], len(text)]
    for place, (number, start) in enumerate(zip(ids.tolist(), starts.tolist(), strict=True)):
        if number == vocabulary.specials.unk:
            end = next((end for end in ends[place:] if end > start), len(text))
            yield text[start:end].strip()


def measure(vocabulary: Vocabulary, texts: Iterable[str]) -> Fertility:
    """The figures of cleaned sentences."""
    figures = Fertility()
    gathered: list[str] = []
    for text in texts:
        gathered.append(text)
        if len(gathered) == _TOGETHER:
            figures.add(vocabulary, gathered)
            gathered = []
    figures.add(vocabulary, gathered)
    return figures
