"""ERNIE's knowledge masking: words, then noun phrases, then named entities, for a third of the steps each.

Command (rows with both layers of tags; the other arms read them as well):
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --validation 'held-out/*.jsonl.gz' --train-vocab 4000 --length 128 \
        --tags entities noun_phrases --annotator spacy:en_core_web_sm --output rows
    python -m spanjax.train --config configs/ablations/objective_ernie.py --rows rows --workdir runs/objectives/ernie

Expect: docs/results.md; the settings in common are in objective_base.py. `python -m benchmarks.objectives` moves the stages with
the number of steps.
"""

import dataclasses

from configs.ablations.objective_base import MASKED
from configs.ablations.objective_base import RUN as BASE
from spanjax.data.feed.masking import Stage, Staged, TaggedSpans, WholeWords

STAGES = (
    Stage(0, WholeWords()),
    Stage(267, TaggedSpans(tag="noun_phrases", share=1.0)),
    Stage(533, TaggedSpans(tag="entities", share=1.0)),
)

RUN = dataclasses.replace(BASE, objective=dataclasses.replace(MASKED, masking=Staged(stages=STAGES)))
