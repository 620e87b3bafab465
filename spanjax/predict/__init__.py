"""python -m spanjax.predict: predictions of a model for texts. Needs one device and no TensorFlow.

Commands: fill-mask, spans, examples, encode, task, qa, classify, relation, ner, coref; `python -m spanjax.predict COMMAND --help`
documents each. MODEL is a run directory, a checkpoint, a folder of PyTorch weights, or an installed model (spanbert-mini). Exit
codes: 0 every record is answered, 2 wrong input, no record, or none that could be answered, 4 some records could not (each has
an `error`; stderr lists the first), 130 stopped by Ctrl-C.
"""

from spanjax.cli import dispatch

COMMANDS = {
    "fill-mask": "the most probable pieces at every [MASK]",
    "spans": "runs of [MASK] by the masked token head, by the span boundaries alone, and by both",
    "examples": "hidden spans and words of held-out text, by several models next to each other",
    "encode": "vectors of texts, as a NumPy array or a Parquet table",
    "task": "predictions for records of any task, a task of your own too, by a fine-tuned model",
    "qa": "answers to questions from passages, by a fine-tuned model",
    "classify": "the label of sentences or pairs of sentences, by a fine-tuned model",
    "relation": "the relation between two entities of a sentence, by a fine-tuned model",
    "ner": "named entities of sentences, by a fine-tuned model",
    "coref": "mentions of a text that mean the same, by a fine-tuned model",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command that the first word names; returns the exit code."""
    return dispatch(__name__, __doc__, COMMANDS, arguments)
