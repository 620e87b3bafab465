"""Clusters of words from the antecedents of spans, and their JSON form."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from spanjax.tasks.coref.documents import Clusters, CorefDocument, Mention, sorted_clusters
from spanjax.tasks.coref.segments import DocumentTokens, word_span


class CorefPrediction(NamedTuple):
    """Prediction for a document."""

    clusters: Clusters
    linked: Mapping[Mention, float]
    """Probability of each mention of a cluster to have an antecedent."""


def gold_clusters(documents: Sequence[CorefDocument]) -> list[Clusters]:
    """The gold clusters of documents; ValueError where one has none known."""
    if missing := [each.name for each in documents if each.clusters is None]:
        raise ValueError(
            f"{len(missing)} documents have no clusters ({missing[0]} first): scores need coreference for each"
        )
    return [each.clusters or () for each in documents]


def answer_of(
    pieces: DocumentTokens, output: Mapping[str, np.ndarray], keep_singletons: bool, given: bool = False
) -> CorefPrediction:
    """Clusters from one row's `Coref.outputs`: every span joins its antecedent; a span alone counts where singletons are kept
    and its mention score is above 0, or the document brought its mentions (`given`). Spans of pieces with the same words are
    one mention."""
    cluster_of: dict[int, int] = {}
    members: list[list[int]] = []
    # spans are sorted and an antecedent comes before its span, so the cluster of `other` is final when it is read
    for span in np.flatnonzero(output["real_BM"]).tolist():
        other = int(output["antecedent_BM"][span])
        if other < 0:
            continue
        if other not in cluster_of:
            cluster_of[other] = len(members)
            members.append([other])
        cluster_of[span] = cluster_of[other]
        members[cluster_of[span]].append(span)
    if keep_singletons:
        alone = (output["real_BM"] > 0) & ((output["mention_BM"] > 0) | given)
        members += [[span] for span in np.flatnonzero(alone).tolist() if span not in cluster_of]
    linked: dict[Mention, float] = {}
    clusters = []
    for spans in members:
        mentions = []
        for span in spans:
            mention = word_span(pieces, int(output["first_BM"][span]), int(output["last_BM"][span]))
            if mention not in linked:
                linked[mention] = float(output["linked_BM"][span])
                mentions.append(mention)
        if len(mentions) > 1 or (mentions and keep_singletons):
            clusters.append(mentions)
    return CorefPrediction(sorted_clusters(clusters), linked)


def prediction_json(document: CorefDocument, answer: CorefPrediction) -> dict[str, Any]:
    """{"prediction": clusters, each a list of mentions with `words`, `first` and `last` word, and of a text `start` and `end`
    characters, the end excluded; `sentences`, the document's words; `id`}."""
    words = document.words

    def mention_json(mention: Mention) -> dict[str, Any]:
        first, last = mention
        described: dict[str, Any] = {"words": words[first : last + 1], "first": first, "last": last}
        if document.offsets:
            start, end = document.offsets[first][0], document.offsets[last][1]
            described |= {"start": start, "end": end, "text": document.text[start:end]}
        return described | {"linked": round(answer.linked[mention], 4)}

    return {
        "id": document.name,
        "prediction": [[mention_json(mention) for mention in cluster] for cluster in answer.clusters],
        "sentences": [list(sentence) for sentence in document.sentences],
    }
