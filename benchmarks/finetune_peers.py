"""The peers of `benchmarks.finetune_steps`: transformers with a plain loop, and with its Trainer.

Each function is a contender: it sends the losses of the batches without dropout, then trains in turns until the pipe closes.
"""

import argparse
import itertools
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.finetune_steps import BATCH, LENGTH, Turns, Work
from benchmarks.torch_finetune import batches, factor, optimizer_of

RATE, DECAY, EPSILON = 2e-5, 0.01, 1e-8
STEPS = 10_000  # of the schedule: more than are taken


def opened(work: Work) -> tuple[Any, Any, dict[str, Any]]:
    """(model, tokenizer, {"texts": arguments of the tokenizer, "labels": their numbers})."""
    import torch
    import transformers

    torch.set_num_threads(work.cores)
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(work.model)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(work.model)
    first, second, labels = zip(*work.rows, strict=True)
    texts = [list(first)] if second[0] is None else [list(first), list(second)]
    return model, tokenizer, {"texts": texts, "labels": [model.config.label2id[label] for label in labels]}


def in_order(rows: int) -> list[list[int]]:
    """The batches as spanjax has them."""
    return [list(range(start, start + BATCH)) for start in range(0, rows, BATCH)]


def losses(model: Any, rows: Any, labels: Sequence[int], tokenizer: Any) -> list[float]:
    """The loss of every batch without dropout."""
    import torch

    model.eval()
    with torch.inference_mode():
        found = [float(model(**batch).loss) for batch in batches(rows, labels, tokenizer, in_order(len(labels)))]
    model.train()
    return found


def grouped(pipe: Connection, work: Work) -> None:
    """A plain loop over the same batches, each padded to its longest row."""
    import torch

    model, tokenizer, data = opened(work)
    rows, labels = tokenizer(*data["texts"], truncation=True, max_length=LENGTH), data["labels"]
    pipe.send(losses(model, rows, labels, tokenizer))
    settings = argparse.Namespace(weight_decay=DECAY, learning_rate=RATE, epsilon=EPSILON, fused=True)
    optimizer, turns = optimizer_of(model, settings), Turns(pipe, work.count)
    passes = itertools.chain.from_iterable(itertools.repeat(in_order(len(labels))))
    for done, batch in enumerate(batches(rows, labels, tokenizer, passes)):
        turns.before_step(lambda: None)
        for group in optimizer.param_groups:
            group["lr"] = RATE * factor(done, 0, STEPS)
        optimizer.zero_grad()
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def trainer(pipe: Connection, work: Work, padded: bool = False) -> None:
    """The Trainer as the guide to text classification sets it up: rows in random order, DataCollatorWithPadding."""
    import datasets  # pyright: ignore[reportMissingImports]
    import transformers

    model, tokenizer, data = opened(work)
    pipe.send(losses(model, tokenizer(*data["texts"], truncation=True, max_length=LENGTH), data["labels"], tokenizer))
    names = [f"sentence{number}" for number in range(len(data["texts"]))]
    found = datasets.Dataset.from_dict({**dict(zip(names, data["texts"], strict=True)), "label": data["labels"]})
    padding: Any = {"padding": "max_length"} if padded else {}

    def cut(some: Any) -> Any:
        return tokenizer(*(some[name] for name in names), truncation=True, max_length=LENGTH, **padding)

    turns = Turns(pipe, work.count)

    class InTurns(transformers.TrainerCallback):
        """Waits for the contender's turn."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            turns.before_step(lambda: None)

    arguments = transformers.TrainingArguments(
        output_dir=str(work.folder),
        learning_rate=RATE,
        per_device_train_batch_size=BATCH,
        num_train_epochs=STEPS // work.count,
        weight_decay=DECAY,
        # the default saves every 500 steps, which would fall into some passes alone
        save_strategy="no",
    )
    collator = transformers.default_data_collator if padded else transformers.DataCollatorWithPadding(tokenizer)
    transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=found.map(cut, batched=True),
        processing_class=tokenizer,
        data_collator=collator,
        callbacks=[InTurns()],
    ).train()


def trainer_padded(pipe: Connection, work: Work) -> None:
    """The Trainer as the script run_glue sets it up: every row is padded to LENGTH when it is read."""
    trainer(pipe, work, padded=True)
