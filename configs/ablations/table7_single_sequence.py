"""Table 7, Span Masking (1seq): single sequences without next sentence prediction (SpanBERT, section 6.2).

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --holdout 0.001 \
        --tags entities noun_phrases --annotator spacy:en_core_web_sm --output rows
    python -m spanjax.train --config configs/ablations/table7_single_sequence.py --rows rows \
        --workdir runs/ablations/table7_single_sequence

A block is one sequence of up to 510 tokens where base.py makes two segments of it, one token shorter in all.
Expect: the paper's row has SQuAD 2.0 86.7, NewsQA 73.4, TriviaQA 80.0, coreference 76.3 (F1), MNLI-m 87.3, QNLI 93.8, GLUE 83.8
on average (table 7). Not trained here to the end.
"""

import dataclasses

from configs.ablations.base import OBJECTIVE
from configs.ablations.base import RUN as BASE
from spanjax.data.feed.pairing import Single
from spanjax.objectives.loss_terms import MaskedTokens

RUN = dataclasses.replace(BASE, objective=dataclasses.replace(OBJECTIVE, pairing=Single(), terms=(MaskedTokens(),)))
