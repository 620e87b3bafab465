"""Table 6, Named Entities: half of the time a named entity is masked, else a whole word (SpanBERT, section 6.1).

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --holdout 0.001 \
        --tags entities noun_phrases --annotator spacy:en_core_web_sm --output rows
    python -m spanjax.train --config configs/ablations/table6_named_entities.py --rows rows \
        --workdir runs/ablations/table6_named_entities

The paper takes the "non-numerical named entity mentions" of spaCy; the annotator of `prepare` marks them (D17).
Expect: the paper's row has SQuAD 2.0 84.8, NewsQA 72.7, TriviaQA 78.7, coreference 75.6 (F1), MNLI-m 86.0, QNLI 93.1, GLUE 83.2
on average (table 6). Not trained here to the end.
"""

import dataclasses

from configs.ablations.base import OBJECTIVE
from configs.ablations.base import RUN as BASE
from spanjax.data.feed.masking import TaggedSpans

RUN = dataclasses.replace(BASE, objective=dataclasses.replace(OBJECTIVE, masking=TaggedSpans(tag="entities")))
