"""A masking policy: spans whose number of words follows a Poisson distribution, as in BART (Lewis et al., 2020)."""

import dataclasses
import math

import numpy as np

from spanjax.bounds import Positive
from spanjax.data.feed.masking import MostWords, SpanPolicy


@dataclasses.dataclass(frozen=True)
class PoissonSpans(SpanPolicy):
    """Spans of whole words with Poisson lengths, cut at `max_words` and renormalised; no span is empty."""

    mean: Positive = 3.0
    """Mean number of words, before the cut."""
    max_words: MostWords = 10
    """Most words of a span."""

    def length_distribution(self) -> np.ndarray:
        """Probability of 1, 2, ... `max_words` words."""
        words = range(1, self.max_words + 1)
        weights = np.exp([n * math.log(self.mean) - math.lgamma(n + 1) for n in words])
        return weights / weights.sum()
