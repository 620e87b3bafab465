"""Linear probes on frozen vectors: ridge classifiers by scikit-learn, their penalty chosen on one part, scored on another.

Among the penalties is an infinite one, the constant answer, so that vectors without information score as the majority does.
A ridge classifier takes a hundredth of the time of a logistic regression of 45 classes (0.2 for 20 CPU seconds).
Shapes: N items, D width of their vectors, P pairs.
"""

import collections
import functools
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from spanjax.inference.encode import TextEncoder
from spanjax.suite.quick_data import Pairs, ProbeData, part_of, share_of

PENALTIES = (10.0, 1.0, 0.1, 0.01, 0.001)
"""Penalties on squared weights, each times the number of items: features have a variance of 1."""
_WORD = re.compile(r"\w+")
CHUNK = 256  # texts whose token vectors of all layers are held at once
ALL_LAYERS, SOME = 12, 6
FARTHEST = float(np.finfo(np.float16).max)
MOST_TRAINED = 6000


def probed_layers(count: int) -> list[int]:
    """Returns the hidden states that a probe may read of an encoder with so many layers: each layer of up to 12, of more six at
    equal distances. Not the embeddings: they relate no words to each other, and pass on which word it is."""
    return [*range(1, count + 1)] if count <= ALL_LAYERS else [round(count * n / SOME) for n in range(1, SOME + 1)]


def item_vectors(encoder: TextEncoder, data: ProbeData) -> np.ndarray:
    """Returns float16 [K, N, D] of the layers of `probed_layers`: vectors of texts by the model's own pooling, or of spans, the
    mean of their tokens or the first.

    A span that the encoder does not read, because the text is too long for it, has zeros.
    """
    config, items = encoder.model.encoder, data.items
    layers = probed_layers(config.layers)
    found = np.zeros((len(layers), len(items), config.hidden_size * max(1, len(items[0].spans))), np.float16)
    by_text: dict[int, list[int]] = {}
    for number, item in enumerate(items):
        by_text.setdefault(item.text, []).append(number)
    # chunks of like lengths need few programs
    used = sorted(by_text, key=lambda place: len(data.texts[place]))
    for first in range(0, len(used), CHUNK):
        some = used[first : first + CHUNK]
        texts = [data.texts[place] for place in some]
        numbers = [number for place in some for number in by_text[place]]
        if not items[0].spans:
            vectors = encoder.encode(texts, layers=layers, truncate=True)
        else:
            of_tokens = encoder.encode(texts, "none", layers=layers, truncate=True)
            vectors = [
                [
                    np.concatenate([_span_vector(tokens, span, data.first_piece) for span in items[number].spans])
                    for place, tokens in zip(some, own, strict=True)
                    for number in by_text[place]
                ]
                for own in of_tokens
            ]
        for layer, own in enumerate(vectors):
            # an outlier beyond the range of half precision is as far out at its end
            found[layer, numbers] = np.clip(np.array(own), -FARTHEST, FARTHEST)
    return found


def _span_vector(tokens: Any, span: tuple[int, int], first: bool) -> np.ndarray:
    starts_T, ends_T = tokens.offsets_T2.T
    (places,) = np.nonzero((starts_T < span[1]) & (ends_T > span[0]))
    if not len(places):
        return np.zeros(tokens.vectors_TD.shape[1], np.float32)
    return tokens.vectors_TD[places[:1] if first else places].mean(axis=0)


def parts_of(data: ProbeData, seed: int) -> dict[str, np.ndarray]:
    """Returns the items of every part for a seed, by index."""
    parts: dict[str, list[int]] = {"train": [], "choose": [], "report": []}
    for number, item in enumerate(data.items):
        part = part_of(seed, item.words or (data.texts[item.text],), number)
        if part is not None:
            parts[part].append(number)
    order = sorted(parts["train"], key=lambda number: share_of(seed, f"item {number}"))
    parts["train"] = sorted(order[:MOST_TRAINED])
    return {part: np.array(numbers, np.int64) for part, numbers in parts.items()}


class Probed(NamedTuple):
    """A trained probe."""

    predicted: np.ndarray
    """Labels of the reported items."""
    layer: int | None
    """Index of the layer that it reads; None of the constant answer, which reads none."""
    penalty: float


def probe(vectors_KND: np.ndarray, labels: Sequence[str], parts: dict[str, np.ndarray]) -> Probed:
    """Trains on one part, chooses layer and penalty on another, and predicts the third.

    The layer is that of the best score; the penalty the largest one of this layer whose score is within a standard error of it
    (Breiman et al., 1984): what helps within the noise of a few hundred items helps no further item.
    """
    label_N = np.array(labels)
    train, choose, report = (parts[name] for name in ("train", "choose", "report"))
    names, counts = np.unique(label_N[train], return_counts=True)
    common = names[counts.argmax()]
    constant = Probed(np.full(len(report), common), None, math.inf)
    layers = [[(float(np.mean(label_N[choose] == common)), constant)]]
    target_NC = np.where(label_N[train][:, None] == names, 1.0, -1.0)
    for layer, vectors_ND in enumerate(vectors_KND if len(names) > 1 else ()):
        own = []
        for penalty, (chosen_NC, reported_NC) in ridge_scores(vectors_ND, target_NC, train, (choose, report)):
            right = float(np.mean(names[chosen_NC.argmax(axis=1)] == label_N[choose]))
            own.append((right, Probed(names[reported_NC.argmax(axis=1)], layer, penalty)))
        layers.append(own)
    best_layer = max(layers, key=lambda own: max(right for right, _ in own))
    best = max(right for right, _ in best_layer)
    error = math.sqrt(best * (1 - best) / len(choose))
    return next(found for right, found in [*layers[0], *best_layer] if right >= best - error)


def ridge_scores(
    vectors_ND: np.ndarray, target_MC: np.ndarray, train: np.ndarray, others: Sequence[np.ndarray]
) -> Iterator[tuple[float, list[np.ndarray]]]:
    """Yields every penalty with the scores of `others`, the largest penalty first: those of scikit-learn's RidgeClassifier on
    vectors with mean 0 and variance 1. One matrix of products serves all penalties."""
    from scipy.linalg import solve

    train_MD = vectors_ND[train].astype(np.float64)
    mean_D, spread_D = train_MD.mean(axis=0), train_MD.std(axis=0)
    scale_D = np.where(spread_D > 1e-8, spread_D, 1.0)
    train_MD = (train_MD - mean_D) / scale_D
    shift_C = target_MC.mean(axis=0)
    products_DD, moment_DC = train_MD.T @ train_MD, train_MD.T @ (target_MC - shift_C)
    scaled = [(vectors_ND[part].astype(np.float64) - mean_D) / scale_D for part in others]
    for penalty in PENALTIES:
        weights_DC = solve(
            products_DD + penalty * len(train) * np.eye(len(products_DD)), moment_DC, assume_a="pos", overwrite_a=True
        )
        yield penalty, [part_ND @ weights_DC + shift_C for part_ND in scaled]


def told_by_words(data: ProbeData, train: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns bool of `others`: True for each item whose label words tell, by classifiers that are trained on `train`.

    They read the letters of the item's own words, or of its text, in groups of two to four, all words of its text, and facts of
    length and place, all together: naive Bayes, and ridge classifiers, as the probe is one; any is enough. Items of first pieces,
    the tags, are read by naive Bayes alone, of letters and of words. None of them knows how frequent a label is: that is what
    the constant answer knows.
    """
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import RidgeClassifier
    from sklearn.naive_bayes import MultinomialNB

    label_N = np.array([item.label for item in data.items])
    # a random encoder passes on all of these: the pieces of the item, where it is, and through attention the words around it
    tables = []
    for bag in (_own_letters, _all_words, _shape):
        analyzer: Any = functools.partial(bag, data)
        counter: Any = CountVectorizer(analyzer=analyzer, binary=True)
        tables.append((counter.fit_transform(train.tolist()), counter.transform(others.tolist())))
    models: list[Any] = [MultinomialNB(fit_prior=False)]
    if data.first_piece:
        # endings and places together tell nearly every tag: with ridge classifiers 31 to 57 of 2,800 items were left
        read = tables[:2]
    else:
        models += [RidgeClassifier(alpha=alpha, class_weight="balanced", solver="sparse_cg") for alpha in (3.0, 30.0)]
        read = [tuple(hstack(parts, "csr") for parts in zip(*tables, strict=True))]
    solved = np.zeros(len(others), bool)
    for trained, scored in read:
        for model in models:
            solved |= model.fit(trained, label_N[train]).predict(scored) == label_N[others]
    return solved


def _own_letters(data: ProbeData, number: int) -> list[str]:
    """Groups of letters of an item's words: of its spans, each apart, or of its whole text."""
    item = data.items[number]
    text = data.texts[item.text].lower()
    words = [f"{place}<{text[slice(*span)]}>" for place, span in enumerate(item.spans)]
    words = words or [f" <{word}>" for word in text.split()]
    return [
        word[0] + word[at : at + size] for word in words for size in (2, 3, 4) for at in range(1, len(word) - size + 1)
    ]


def _all_words(data: ProbeData, number: int) -> list[str]:
    return data.texts[data.items[number].text].lower().split()


def _shape(data: ProbeData, number: int) -> list[str]:
    """Facts beside letters: length of the text, and of every span its length, its place, and its capital letters and digits."""
    item = data.items[number]
    text = data.texts[item.text]
    found = [f"text {min(len(text.split()) // 3, 12)}"]
    for place, (start, end) in enumerate(item.spans):
        span = text[start:end]
        before, behind = len(text[:start].split()), len(text[end:].split())
        kind = "".join("A" if c.isupper() else "a" if c.islower() else "0" if c.isdigit() else c for c in span)
        found += [f"{place} before {min(before, 12)}", f"{place} behind {min(behind, 12)}"]
        found += [f"{place} words {len(span.split())}", f"{place} letters {min(len(span) // 3, 8)}"]
        # Aa for a name, A for one in capitals
        found.append(f"{place} form {''.join(sign for sign, _ in itertools.groupby(kind))}")
    return found


def balanced(
    part: np.ndarray, labels: Sequence[str], solved: np.ndarray, common: str, chance: float, seed: int
) -> np.ndarray:
    """Returns the items of a part that are left when words tell at most the share `chance` of every label, and the `common`
    label has this share: words are then right no more often than the constant answer."""
    order = sorted(
        zip(map(int, part), solved.tolist(), strict=True), key=lambda each: share_of(seed, f"balance {each[0]}")
    )
    sides: dict[bool, dict[str, list[int]]] = {True: {}, False: {}}
    for number, known in order:
        sides[known].setdefault(labels[number], []).append(number)
    ratio, groups = chance / (1 - chance), dict[bool, list[int]]({True: [], False: []})
    for label, own in sides[False].items():
        groups[label == common] += [*own, *sides[True].get(label, [])[: round(len(own) * ratio)]]
    # thinning by label changes the shares of the labels: the common one gets that of training back
    shared, others = (
        sorted(groups[side], key=lambda number: share_of(seed, f"share {number}")) for side in (True, False)
    )
    rest = min(len(others), int(len(shared) / ratio))
    return np.array(sorted([*others[:rest], *shared[: round(rest * ratio)]]), np.int64)


def divided(data: ProbeData, seed: int) -> dict[str, np.ndarray]:
    """Returns the items of every part: all of training, and of the others those that are left by `balanced`."""
    parts, labels = parts_of(data, seed), [item.label for item in data.items]
    names, counts = np.unique(np.array(labels)[parts["train"]], return_counts=True)
    if len(names) < 2:
        return parts
    chance = min(0.5, float(counts.max() / counts.sum()))
    # one training of the classifiers serves both parts
    solved = told_by_words(data, parts["train"], np.concatenate([parts["choose"], parts["report"]]))
    for name, own in zip(("choose", "report"), np.split(solved, [len(parts["choose"])]), strict=True):
        parts[name] = balanced(parts[name], labels, own, str(names[counts.argmax()]), chance, seed)
    return parts


def cosines(encoder: TextEncoder, pairs: Pairs) -> np.ndarray:
    """Returns float64 [P]: cosines of the vectors of both sentences of every pair, by the model's own pooling."""
    both = encoder.encode([*pairs.first, *pairs.second], truncate=True).astype(np.float64)
    both /= np.maximum(np.linalg.norm(both, axis=1, keepdims=True), 1e-12)
    return np.sum(both[: len(pairs.first)] * both[len(pairs.first) :], axis=1)


def overlap(pairs: Pairs) -> np.ndarray:
    """Returns float64 [P, 4]: facts of the words of every pair that tell much of its similarity, for `partial_spearman`.

    The cosines of both bags of words, plain and weighted by how rare the words are, that of both bags of groups of three letters,
    weighted alike, and the difference of their lengths.
    """

    def letters(word: str) -> list[str]:
        return [f" {word} "[at : at + 3] for at in range(len(word))]

    words = [[_WORD.findall(text.lower()) for text in side] for side in (pairs.first, pairs.second)]
    groups = [[[group for word in each for group in letters(word)] for each in side] for side in words]
    columns = [_cosines(words, rare=False), _cosines(words, rare=True), _cosines(groups, rare=True)]
    lengths = [abs(len(a) - len(b)) / max(len(a) + len(b), 1) for a, b in zip(*words, strict=True)]
    return np.column_stack([*columns, lengths])


def _cosines(bags: Sequence[Sequence[Sequence[str]]], rare: bool) -> list[float]:
    """Cosines of the bags of both sides of every pair, each entry 1, or with `rare` the logarithm of its inverse frequency."""
    number = collections.Counter(entry for side in bags for bag in side for entry in {*bag})
    total = 2 * len(bags[0])
    square = {entry: math.log(total / count) ** 2 if rare else 1.0 for entry, count in number.items()}

    def size(bag: set[str]) -> float:
        return math.fsum(square[entry] for entry in bag)

    both = [({*one}, {*other}) for one, other in zip(*bags, strict=True)]
    sizes = [math.sqrt(size(one) * size(other)) for one, other in both]
    return [size(one & other) / norm if norm else 0.0 for (one, other), norm in zip(both, sizes, strict=True)]


def partial_spearman(gold_P: np.ndarray, predicted_P: np.ndarray, facts_PF: np.ndarray) -> float:
    """Returns Spearman's correlation of what is left of both ranks when linear functions of the ranks of the facts are
    subtracted, -100 to 100; 0 where nothing is left of the predictions."""
    from scipy.stats import rankdata

    facts = np.column_stack([np.ones(len(gold_P)), *(rankdata(column) for column in facts_PF.T)])
    left = []
    for value_P in (rankdata(gold_P), rankdata(predicted_P)):
        left.append(value_P - facts @ np.linalg.lstsq(facts, value_P, rcond=None)[0])
    sizes = [float(np.linalg.norm(each)) for each in left]
    if min(sizes) < 1e-6 * len(gold_P):
        return 0.0
    return 100 * float(left[0] @ left[1]) / (sizes[0] * sizes[1])
