"""ERNIE's knowledge masking on BERT base: words, then phrases, then named entities (Sun et al., 2019, section 3.2).

Command (both layers of tags, written once by spaCy):
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --holdout 0.001 \
        --tags entities noun_phrases --annotator spacy:en_core_web_sm --output rows
    python -m spanjax.train --config configs/pretrain/ernie_base.py --rows rows --workdir runs/ernie_base

Expect: the paper names the three stages, not their lengths, and trains on Chinese text; here each has a third of the steps, with
noun phrases for phrases. Where a row has no tagged span left, words are masked. Not trained here to the end.
"""

import dataclasses

from configs.pretrain.bert_base import RUN as BERT
from spanjax.data.feed.masking import Stage, Staged, TaggedSpans, WholeWords
from spanjax.objectives.loss_terms import MaskedTokens
from spanjax.objectives.masked_lm import MaskedPrediction

RUN = dataclasses.replace(
    BERT,
    objective=MaskedPrediction(
        masking=Staged(
            stages=(
                Stage(0, WholeWords()),
                Stage(333_000, TaggedSpans(tag="noun_phrases", share=1.0)),
                Stage(666_000, TaggedSpans(tag="entities", share=1.0)),
            )
        ),
        terms=(MaskedTokens(),),
    ),
    optimizer=dataclasses.replace(BERT.optimizer, bias_correction=True),
)
