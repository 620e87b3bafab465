"""python -m benchmarks.step [--check] [--json FILE]: the training step beside Hugging Face's on full rows, in one process.

SpanBERT's two losses on the same rows, the same masks and the same weights, fp32, dropout 0.1, AdamW. The peers are
BertForMaskedLM with a span boundary head in PyTorch: as it is shipped, which scores every position, and with a head over the
masked positions alone. Losses without dropout are compared before anything is timed. Two more contenders are spanjax itself:
without dropout, and reading rows from disk.
"""

import argparse
import dataclasses
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.data import made_rows

VOCABULARY = 28_996


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What is timed."""

    layers: int
    width: int
    batch: int
    length: int = 512

    @property
    def encoder(self) -> Any:
        """The encoder of spanjax."""
        from spanjax.nn.encoder import EncoderConfig

        heads = max(1, self.width // 64)
        return EncoderConfig(
            hidden_size=self.width,
            layers=self.layers,
            heads=heads,
            intermediate_size=4 * self.width,
            unroll=self.layers,
        )


class Ours:
    """spanjax's step on one device, with its state."""

    def __init__(self, sizes: Sizes, rows: Any, dropout: float):
        import jax

        from spanjax.parallel import make_mesh
        from spanjax.run import Run
        from spanjax.session import assemble

        encoder = dataclasses.replace(
            sizes.encoder, vocab_size=rows.vocabulary.size, dropout=dropout, attention_dropout=dropout
        )
        run = Run(encoder=encoder, batch_size=sizes.batch)
        self.session = assemble(run, rows, None, make_mesh(run.mesh, jax.devices()[:1]))
        self.state = self.session.fresh_state()
        self.params = jax.device_get(self.state.params)
        schedule = run.optimizer.schedule(run.steps)
        self.step = self.session.builder.train_step(self.session.optimizer, schedule, self.session.shardings)

    def run(self, batch: Any) -> None:
        """One update, finished."""
        import jax

        self.state, shown = self.step(self.state, batch)
        jax.block_until_ready(shown)

    def losses(self, batch: Any) -> dict[str, float]:
        """Both losses of the first weights, without dropout."""
        means = self.session.builder.eval_step()(self.params, batch)
        return {name: means[f"{name}/loss"].value() for name in ("mlm", "sbo")}


class Theirs:
    """BertForMaskedLM and a span boundary head in PyTorch, with the same weights."""

    def __init__(self, sizes: Sizes, ours: Ours, dropout: float, masked_only: bool):
        import torch
        import transformers

        from spanjax.model import canonical
        from spanjax.torch_format.configs import their_config
        from spanjax.torch_format.tables import BERT, their_tensors

        encoder = dataclasses.replace(ours.session.run.encoder, dropout=dropout, attention_dropout=dropout)
        config = transformers.BertConfig(**their_config(encoder, None, {"mlm"}, "float32"))
        self.model: Any = transformers.BertForMaskedLM(config)
        weights = dict(their_tensors(canonical(ours.params), encoder, BERT))
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in weights.items()}
        boundary = {name.split("predictions.", 1)[1]: t for name, t in tensors.items() if ".pair_target_" in name}
        self.model.load_state_dict({n: t for n, t in tensors.items() if ".pair_target_" not in n}, strict=False)
        self.head = boundary_head(encoder, boundary)
        self.masked_only = masked_only
        parameters = [*self.model.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.1)

    def batch(self, batch: Any) -> dict[str, Any]:
        """Our batch as PyTorch wants it."""
        import torch

        arrays = {name: torch.from_numpy(np.array(array)) for name, array in batch.items()}
        arrays = {name: array.long() if array.dtype == torch.int32 else array for name, array in arrays.items()}
        labels = torch.full_like(arrays["tokens_BL"], -100)
        row, slot = torch.nonzero(arrays["slot_weight_BK"] > 0, as_tuple=True)
        labels[row, arrays["slot_position_BK"][row, slot]] = arrays["slot_target_BK"][row, slot]
        return {**arrays, "labels": labels, "row": row, "slot": slot}

    def losses(self, batch: dict[str, Any]) -> tuple[Any, Any]:
        """MLM and SBO, means over their targets."""
        import torch
        from torch.nn import functional

        mask_BL = (batch["segments_BL"] > 0).long()
        bert = self.model.bert(batch["tokens_BL"], mask_BL, batch["types_BL"], batch["positions_BL"])[0]
        row, slot = batch["row"], batch["slot"]
        if self.masked_only:
            scores = self.model.cls(bert[row, batch["slot_position_BK"][row, slot]])
            mlm = functional.cross_entropy(scores, batch["slot_target_BK"][row, slot])
        else:
            scores = self.model.cls(bert)
            mlm = functional.cross_entropy(scores.flatten(0, 1), batch["labels"].flatten())
        row, slot = torch.nonzero(batch["slot_boundary_weight_BK"] > 0, as_tuple=True)
        left, right = (bert[row, batch[f"slot_{side}_BK"][row, slot]] for side in ("left", "right"))
        vectors = self.head(left, right, batch["slot_offset_BK"][row, slot])
        scores = vectors @ self.model.bert.embeddings.word_embeddings.weight.T + self.head.bias
        return mlm, functional.cross_entropy(scores, batch["slot_target_BK"][row, slot])

    def run(self, batch: dict[str, Any]) -> None:
        """One update."""
        import torch

        self.model.train()
        self.optimizer.zero_grad()
        sum(self.losses(batch)).backward()  # pyright: ignore[reportAttributeAccessIssue]
        torch.nn.utils.clip_grad_norm_([*self.model.parameters(), *self.head.parameters()], 1.0)
        self.optimizer.step()


def boundary_head(encoder: Any, weights: dict[str, Any]) -> Any:
    """The head of the span boundary objective as a torch module with these weights."""
    import torch
    from torch import nn

    size = encoder.hidden_size
    offsets, width = weights["position_embeddings.weight"].shape

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position_embeddings = nn.Embedding(offsets, width)
            self.mlp_layer_norm = nn.ModuleDict(
                {
                    "linear1": nn.Linear(2 * size + width, size),
                    "layer_norm1": nn.LayerNorm(size, eps=encoder.norm_epsilon),
                    "linear2": nn.Linear(size, size),
                    "layer_norm2": nn.LayerNorm(size, eps=encoder.norm_epsilon),
                }
            )
            self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))

        def forward(self, left: Any, right: Any, offset: Any) -> Any:
            state = torch.cat([left, right, self.position_embeddings(offset)], dim=-1)
            for number in ("1", "2"):
                state = nn.functional.gelu(self.mlp_layer_norm[f"linear{number}"](state))
                state = self.mlp_layer_norm[f"layer_norm{number}"](state)
            return state

    head = Head()
    head.load_state_dict(weights)
    return head


def contenders(sizes: Sizes, folder: pathlib.Path) -> dict[str, Callable[[], Any]]:
    """Everything that is timed, after the losses were found equal."""
    from spanjax.data.rows import open_rows
    from spanjax.parallel import to_global

    made_rows(folder, 64 * sizes.batch, VOCABULARY)
    rows = open_rows(folder)
    plain, quiet = Ours(sizes, rows, 0.1), Ours(sizes, rows, 0.0)
    feed = plain.session.feed(0)
    local = next(feed)
    batch = to_global(local, plain.session.mesh)
    peers = {
        name: Theirs(sizes, plain, 0.1, masked_only) for name, masked_only in (("shipped", False), ("masked", True))
    }
    for peer in peers.values():
        peer.model.eval()
        theirs = [float(loss.detach()) for loss in peer.losses(peer.batch(local))]
        ours = plain.losses(batch)
        if not np.allclose(theirs, [ours["mlm"], ours["sbo"]], rtol=1e-4):
            raise AssertionError(f"losses differ before timing: {ours} here, {theirs} there")
    torch_batch = peers["shipped"].batch(local)
    return {
        "spanjax": lambda: plain.run(batch),
        "spanjax, dropout 0": lambda: quiet.run(batch),
        "spanjax, rows from disk": lambda: plain.run(to_global(next(feed), plain.session.mesh)),
        "Hugging Face as shipped + SBO": lambda: peers["shipped"].run(torch_batch),
        "Hugging Face, masked-only head + SBO": lambda: peers["masked"].run(torch_batch),
    }


def main() -> int:
    """Runs everything; the exit code."""
    more = argparse.ArgumentParser(add_help=False)
    for name, value in (("layers", 4), ("width", 768), ("batch", 4)):
        more.add_argument(f"--{name}", type=int, default=value, help=f"{name} of the model or of its rows")
    found = timing.options(__doc__ or "", more)
    timing.pin(found.cores)
    import torch

    torch.set_num_threads(found.cores)
    sizes = Sizes(found.layers, found.width, found.batch)
    with tempfile.TemporaryDirectory() as folder:
        seconds = timing.alternating(contenders(sizes, pathlib.Path(folder) / "rows"), found.repeats)
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    for name, values in seconds.items():
        print(f"{name:40s}{medians[name]:8.3f} s a step   ({min(values):.3f} to {max(values):.3f})")
    ours = medians["spanjax"]
    targets = [
        timing.Target(
            "Hugging Face as shipped over spanjax", medians["Hugging Face as shipped + SBO"] / ours, least=2.8
        ),
        timing.Target(
            "Hugging Face, masked-only head, over spanjax",
            medians["Hugging Face, masked-only head + SBO"] / ours,
            least=1.9,
        ),
        timing.Target("dropout on over off (C8)", ours / medians["spanjax, dropout 0"], most=1.02),
        timing.Target("rows from disk over a fixed batch (C9)", medians["spanjax, rows from disk"] / ours, most=1.02),
    ]
    return timing.report({"sizes": dataclasses.asdict(sizes), "seconds": seconds}, targets, found)


if __name__ == "__main__":
    sys.exit(main())
