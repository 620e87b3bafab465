"""Table 7, Span Masking (2seq) + NSP: two segments and next sentence prediction (SpanBERT, section 6.2).

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --holdout 0.001 \
        --tags entities noun_phrases --annotator spacy:en_core_web_sm --output rows
    python -m spanjax.train --config configs/ablations/table7_two_sequences.py --rows rows \
        --workdir runs/ablations/table7_two_sequences

The same run as table6_geometric_spans.py, under its name in table 7; one training serves both.
Expect: the paper's row has SQuAD 2.0 85.4, NewsQA 73.0, TriviaQA 78.8, coreference 76.4 (F1), MNLI-m 87.0, QNLI 93.3, GLUE 83.4
on average (table 7). Not trained here to the end.
"""

import dataclasses

from configs.ablations.base import OBJECTIVE
from configs.ablations.base import RUN as BASE
from spanjax.data.feed.pairing import NextSentence

RUN = dataclasses.replace(BASE, objective=dataclasses.replace(OBJECTIVE, pairing=NextSentence()))
