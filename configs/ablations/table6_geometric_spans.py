"""Table 6, Geometric Spans: spans of whole words with geometric lengths (SpanBERT, sections 3.1 and 6.1).

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --holdout 0.001 \
        --tags entities noun_phrases --annotator spacy:en_core_web_sm --output rows
    python -m spanjax.train --config configs/ablations/table6_geometric_spans.py --rows rows \
        --workdir runs/ablations/table6_geometric_spans

The settings are those of base.py.
Expect: the paper's row has SQuAD 2.0 85.4, NewsQA 73.0, TriviaQA 78.8, coreference 76.4 (F1), MNLI-m 87.0, QNLI 93.3, GLUE 83.4
on average (table 6). Not trained here to the end.
"""

import dataclasses

from configs.ablations.base import OBJECTIVE
from configs.ablations.base import RUN as BASE
from spanjax.data.feed.masking import GeometricSpans

RUN = dataclasses.replace(BASE, objective=dataclasses.replace(OBJECTIVE, masking=GeometricSpans()))
