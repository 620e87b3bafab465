"""Table 6, Noun Phrases: half of the time a noun phrase is masked, else a whole word (SpanBERT, section 6.1).

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --holdout 0.001 \
        --tags entities noun_phrases --annotator spacy:en_core_web_sm --output rows
    python -m spanjax.train --config configs/ablations/table6_noun_phrases.py --rows rows \
        --workdir runs/ablations/table6_noun_phrases

The paper takes the noun phrases that spaCy finds; the annotator of `prepare` marks them (D18).
Expect: the paper's row has SQuAD 2.0 85.0, NewsQA 73.0, TriviaQA 77.7, coreference 76.7 (F1), MNLI-m 86.5, QNLI 93.2, GLUE 83.5
on average (table 6). Not trained here to the end.
"""

import dataclasses

from configs.ablations.base import OBJECTIVE
from configs.ablations.base import RUN as BASE
from spanjax.data.feed.masking import TaggedSpans

RUN = dataclasses.replace(BASE, objective=dataclasses.replace(OBJECTIVE, masking=TaggedSpans(tag="noun_phrases")))
