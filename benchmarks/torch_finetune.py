"""python -m benchmarks.torch_finetune --model FOLDER --train FILE --dev FILE --output FOLDER: a fine-tune by transformers.

The peer of `benchmarks.finetune`: a plain loop over sentence pairs with AutoModelForSequenceClassification. Batches are padded
to their longest row and, as `Trainer` does with `group_by_length`, sorted by length inside pools of 50 batches. AdamW without
decay for biases and LayerNorms, linear warm-up and decay, clipping by the global norm, dropout of the model's own
configuration. The last weights are saved after the evaluation. Prints one JSON object.
"""

import argparse
import csv
import json
import pathlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

POOL = 50  # batches whose rows are sorted by length together
UNDECAYED = ("bias", "LayerNorm.weight")


def read_pairs(path: pathlib.Path, labels: Sequence[str]) -> tuple[list[tuple[str, str]], list[int]]:
    """(pairs of sentences, numbers of their labels) of a GLUE file with a heading."""
    with path.open(encoding="utf-8", newline="") as lines:
        records = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [(each["sentence1"], each["sentence2"]) for each in records], [
        labels.index(each["label"]) for each in records
    ]


def grouped(lengths: Sequence[int], batch_size: int, generator: Any) -> list[list[int]]:
    """Batches of one epoch: rows shuffled, sorted by length inside pools, and the batches of a pool shuffled again."""
    import torch

    order, found = torch.randperm(len(lengths), generator=generator).tolist(), []
    for first in range(0, len(order), POOL * batch_size):
        pool = sorted(order[first : first + POOL * batch_size], key=lambda row: lengths[row])
        parts = [pool[start : start + batch_size] for start in range(0, len(pool), batch_size)]
        found += [parts[number] for number in torch.randperm(len(parts), generator=generator).tolist()]
    return found


def batches(
    rows: Any, labels: Sequence[int], tokenizer: Any, order: Iterable[Sequence[int]]
) -> Iterator[dict[str, Any]]:
    """The batches of this order, each padded to its longest row."""
    import torch

    for numbers in order:
        batch = tokenizer.pad({name: [rows[name][n] for n in numbers] for name in rows}, return_tensors="pt")
        yield {**batch, "labels": torch.tensor([labels[number] for number in numbers])}


def factor(step: int, warmup: int, steps: int) -> float:
    """Rate of update `step` (from 0) over the peak, as `spanjax.training.optimizers` has it."""
    number = step + 1
    return number / max(warmup, 1) if number <= warmup else (steps - number + 1) / max(steps - warmup, 1)


def optimizer_of(model: Any, found: argparse.Namespace) -> Any:
    """AdamW with weight decay for all but biases and LayerNorms."""
    import torch

    named = list(model.named_parameters())
    plain = [each for name, each in named if name.endswith(UNDECAYED)]
    decayed = [each for name, each in named if not name.endswith(UNDECAYED)]
    groups = [{"params": decayed, "weight_decay": found.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=found.learning_rate, eps=found.epsilon, fused=found.fused)


def train(model: Any, tokenizer: Any, found: argparse.Namespace) -> float:
    """Runs all epochs; seconds since the epoch (Unix) at which the first update was done."""
    import torch

    pairs, labels = read_pairs(found.train, found.labels)
    rows = tokenizer(*map(list, zip(*pairs, strict=True)), truncation=True, max_length=found.length)
    lengths = [len(each) for each in rows["input_ids"]]
    generator = torch.Generator().manual_seed(found.seed)
    per_epoch = -(-len(pairs) // found.batch_size)
    steps = per_epoch * found.epochs
    warmup, done, first = int(found.warmup * steps), 0, 0.0
    optimizer = optimizer_of(model, found)
    model.train()
    for _ in range(found.epochs):
        for batch in batches(rows, labels, tokenizer, grouped(lengths, found.batch_size, generator)):
            for group in optimizer.param_groups:
                group["lr"] = found.learning_rate * factor(done, warmup, steps)
            optimizer.zero_grad()
            model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            done, first = done + 1, first or time.time()
    return first


def accuracy(model: Any, tokenizer: Any, found: argparse.Namespace) -> float:
    """Percent of the dev examples whose label is right; rows go through from the shortest to the longest."""
    import torch

    pairs, labels = read_pairs(found.dev, found.labels)
    rows = tokenizer(*map(list, zip(*pairs, strict=True)), truncation=True, max_length=found.length)
    order = sorted(range(len(pairs)), key=lambda row: len(rows["input_ids"][row]))
    parts = [order[start : start + found.batch_size] for start in range(0, len(order), found.batch_size)]
    model.eval()
    right = 0
    with torch.inference_mode():
        for batch in batches(rows, labels, tokenizer, parts):
            right += int((model(**batch).logits.argmax(-1) == batch["labels"]).sum())
    return 100 * right / len(pairs)


def main() -> int:
    """Trains, evaluates, saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "train", "dev", "output"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--labels", nargs="+", default=["entailment", "not_entailment"])
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--epsilon", type=float, default=1e-6)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--warmup", type=float, default=0.1, help="share of the steps")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fused", action=argparse.BooleanOptionalAction, help="AdamW in one call; torch chooses")
    found = parser.parse_args()

    import torch
    import transformers

    torch.manual_seed(found.seed)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(found.model)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(found.model, num_labels=len(found.labels))
    first = train(model, tokenizer, found)
    score = accuracy(model, tokenizer, found)
    model.save_pretrained(found.output)
    tokenizer.save_pretrained(found.output)
    print(json.dumps({"first_step": first, "accuracy": score}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
