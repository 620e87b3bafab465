"""python -m benchmarks.fills MODEL --rows ROWS [--batches N] [--json FILE]: how often a model fills held-out text correctly.

Two questions over the same held-out rows: single tokens (15 % of them, BERT's choice), and spans of whole words (SpanBERT's),
every one replaced by [MASK]. A token is right if it is the most probable one; a span if all its tokens are. Heads: the masked
token head, the span boundary head, and the product of both.
"""

import argparse
import collections
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spanjax.data.feed.batch import FeedSpec
from spanjax.data.feed.host_slice import HostShare
from spanjax.data.feed.masking import GeometricSpans, MaskingPolicy, Replacement, Tokens
from spanjax.data.feed.rows import open_rows
from spanjax.inference.fill_mask import compiled
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model

BATCH, LONGEST = 32, 4  # rows of a batch; spans of at least so many tokens share a column
ALWAYS = Replacement(mask=1.0, random=0.0)


def spans_of(positions_K: np.ndarray, segments_K: np.ndarray, used: int) -> Iterator[tuple[int, int]]:
    """Yields (first slot, tokens) of every run of consecutive masked positions in one block."""
    first = 0
    for slot in range(1, used + 1):
        ends = slot == used or positions_K[slot] != positions_K[slot - 1] + 1
        if ends or segments_K[slot] != segments_K[slot - 1]:
            yield first, slot - first
            first = slot


def measured(model: Model, rows_folder: pathlib.Path, masking: MaskingPolicy, batches: int) -> dict[str, Any]:
    """Returns figures of one masking: tokens, runs, and by head loss in nats, token accuracy, span accuracy by size.

    A run of adjacent single tokens counts as a span of them.
    """
    # a span is right or wrong as a whole, so runs are put together again from the slots of a row
    share = HostShare(open_rows(rows_folder), FeedSpec(seed=0, batch_size=BATCH, masking=masking), held_out=True)
    heads = [head.name for head in model.objective().fill_heads]
    names = [*heads, "both"] if len(heads) == 2 else heads

    def compute(objective: Any, module: Any, batch: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        logits_BTKV = objective.logits(module, objective.hidden(module, batch, None), batch)[
            ..., : model.encoder.vocab_size
        ]
        log_BTKV = jax.nn.log_softmax(logits_BTKV, axis=-1)
        if len(heads) == 2:
            both = jax.nn.log_softmax(log_BTKV.sum(axis=1, keepdims=True), axis=-1)
            log_BTKV = jnp.concatenate([log_BTKV, both], axis=1)
        target_BK1 = batch["slot_target_BK"][..., None]
        of_target = jnp.take_along_axis(log_BTKV, target_BK1[:, None], axis=-1)[..., 0]
        return log_BTKV.argmax(axis=-1) == target_BK1[:, None, :, 0], of_target

    run = compiled(model, compute)
    nats, right = np.zeros(len(names)), np.zeros(len(names), int)
    whole: dict[int, np.ndarray] = collections.defaultdict(lambda: np.zeros(len(names) + 1, int))
    tokens = 0
    for step in list(share.steps(0))[: batches or None]:
        batch = share.masked(share.global_rows(step)[0]).batch
        right_BTK, log_BTK = map(np.asarray, run({name: jnp.asarray(value) for name, value in batch.items()}))
        for row, weight_K in enumerate(batch["slot_weight_BK"]):
            used = int((weight_K > 0).sum())
            positions_K = batch["slot_position_BK"][row]
            tokens += used
            nats -= log_BTK[row, :, :used].sum(axis=-1)
            right += right_BTK[row, :, :used].sum(axis=-1)
            for first, count in spans_of(positions_K, batch["segments_BL"][row][positions_K], used):
                hit_T = right_BTK[row, :, first : first + count].all(axis=-1)
                whole[min(count, LONGEST)] += np.append(hit_T, True)
    total = sum(whole.values(), np.zeros(len(names) + 1, int))
    return {
        "tokens": tokens,
        "spans": int(total[-1]),
        **{
            name: {
                "loss": round(float(nats[each] / tokens), 4),
                "token accuracy": round(float(right[each] / tokens), 4),
                "span accuracy": round(float(total[each] / total[-1]), 4),
                "by tokens": {str(size): round(float(n[each] / n[-1]), 4) for size, n in sorted(whole.items())},
            }
            for each, name in enumerate(names)
        },
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run directory, a folder of weights or an installed model")
    parser.add_argument("--rows", type=pathlib.Path, required=True, help="folder that prepare wrote, with validation/")
    parser.add_argument("--batches", type=int, default=0, help=f"batches of {BATCH} rows; 0 takes all held-out rows")
    parser.add_argument("--json", type=pathlib.Path, help="file for the figures")
    options = parser.parse_args()
    model, folder = load_model(options.model), options.rows / "validation"
    kinds = {"single tokens": Tokens(replacement=ALWAYS), "spans": GeometricSpans(replacement=ALWAYS)}
    found = {kind: measured(model, folder, masking, options.batches) for kind, masking in kinds.items()}
    for kind, figures in found.items():
        print(f"{kind}: {figures['tokens']:,} tokens in {figures['spans']:,} runs")
        for name, of_head in figures.items():
            if isinstance(of_head, dict):
                sizes = "  ".join(f"{size}: {share:.1%}" for size, share in of_head["by tokens"].items())
                print(
                    f"  {name:5s} loss {of_head['loss']:.4f}  tokens {of_head['token accuracy']:.1%}"
                    f"  whole spans {of_head['span accuracy']:.1%}  (by tokens of the span, {LONGEST} and more together: {sizes})"
                )
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
