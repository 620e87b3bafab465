"""Table 6, Subword Tokens: single WordPiece tokens are masked, as in BERT (SpanBERT, section 6.1).

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --holdout 0.001 \
        --tags entities noun_phrases --annotator spacy:en_core_web_sm --output rows
    python -m spanjax.train --config configs/ablations/table6_subword_tokens.py --rows rows \
        --workdir runs/ablations/table6_subword_tokens

Each masked token draws its own replacement, as in BERT.
Expect: the paper's row has SQuAD 2.0 83.8, NewsQA 72.0, TriviaQA 76.3, coreference 77.7 (F1), MNLI-m 86.7, QNLI 92.5, GLUE 83.2
on average (table 6). The best of the table on coreference. Not trained here to the end.
"""

import dataclasses

from configs.ablations.base import OBJECTIVE
from configs.ablations.base import RUN as BASE
from spanjax.data.feed.masking import Tokens

RUN = dataclasses.replace(BASE, objective=dataclasses.replace(OBJECTIVE, masking=Tokens()))
