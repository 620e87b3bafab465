"""What all arms of SpanBERT's ablations share (Joshi et al., 2020, section 6, tables 6 and 7): span masking, NSP.

Command (one prepared corpus for all arms; only table6_named_entities and table6_noun_phrases read its tags):
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --holdout 0.001 \
        --tags entities noun_phrases --annotator spacy:en_core_web_sm --output rows
    python -m spanjax.train --config configs/ablations/base.py --rows rows --workdir runs/ablations/base

An arm differs from this file in masking, pairing or loss terms and in nothing else: same seed, so the same rows at the same
steps, same encoder, optimizer, batches and number of updates. tests/objectives/test_ablations.py checks it.

The paper compares "checkpoints at 1.2M steps" (footnote 10) of runs whose schedule it does not give for this case; here the rate
decays to 0 at 1.2M. With --steps 2400000 the checkpoint of step 1,200,000 is the other reading. It does not say how large
these models are; base is what a comparison can afford (--encoder.hidden-size 1024 --encoder.layers 24 --encoder.heads 16
--encoder.intermediate-size 4096 is large).

Expect: nothing of its own; the arm with these settings is table6_geometric_spans.py. No arm was trained here to the end. The
paper's numbers in the arms are results of fine-tuning on development sets, of the paper's corpus, and are no targets for the
losses that a run prints: losses of different masking schemes are not comparable, only fine-tuned models are.
"""

import dataclasses

from configs.pretrain.spanbert_base import RUN as SPANBERT_BASE
from spanjax.data.feed.masking import GeometricSpans
from spanjax.data.feed.pairing import NextSentence
from spanjax.objectives.loss_terms import MaskedTokens, SentencePair
from spanjax.objectives.masked_lm import MaskedPrediction

OBJECTIVE = MaskedPrediction(masking=GeometricSpans(), pairing=NextSentence(), terms=(MaskedTokens(), SentencePair()))

RUN = dataclasses.replace(SPANBERT_BASE, objective=OBJECTIVE, steps=1_200_000)
