"""Table 6, Whole Words: random words are masked with all of their tokens (SpanBERT, section 6.1).

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --holdout 0.001 \
        --tags entities noun_phrases --annotator spacy:en_core_web_sm --output rows
    python -m spanjax.train --config configs/ablations/table6_whole_words.py --rows rows \
        --workdir runs/ablations/table6_whole_words

The paper does not say what one draw of the replacement decides for here; each token draws its own, as in BERT.
Expect: the paper's row has SQuAD 2.0 84.3, NewsQA 72.8, TriviaQA 77.1, coreference 76.6 (F1), MNLI-m 86.3, QNLI 92.8, GLUE 82.9
on average (table 6). Not trained here to the end.
"""

import dataclasses

from configs.ablations.base import OBJECTIVE
from configs.ablations.base import RUN as BASE
from spanjax.data.feed.masking import WholeWords

RUN = dataclasses.replace(BASE, objective=dataclasses.replace(OBJECTIVE, masking=WholeWords()))
