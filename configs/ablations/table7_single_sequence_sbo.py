"""Table 7, Span Masking (1seq) + SBO: SpanBERT itself, as an arm (SpanBERT, section 6.2).

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --holdout 0.001 \
        --tags entities noun_phrases --annotator spacy:en_core_web_sm --output rows
    python -m spanjax.train --config configs/ablations/table7_single_sequence_sbo.py --rows rows \
        --workdir runs/ablations/table7_single_sequence_sbo

But for the number of updates the settings are those of configs/pretrain/spanbert_base.py.
Expect: the paper's row has SQuAD 2.0 86.8, NewsQA 74.1, TriviaQA 80.3, coreference 79.0 (F1), MNLI-m 87.6, QNLI 93.9, GLUE 84.0
on average (table 7). The gain on coreference, 2.7 F1 over span masking alone, is the largest. Not trained here to the end.
"""

import dataclasses

from configs.ablations.base import OBJECTIVE
from configs.ablations.base import RUN as BASE
from spanjax.data.feed.pairing import Single
from spanjax.objectives.loss_terms import MaskedTokens, SpanBoundary

RUN = dataclasses.replace(
    BASE, objective=dataclasses.replace(OBJECTIVE, pairing=Single(), terms=(MaskedTokens(), SpanBoundary()))
)
