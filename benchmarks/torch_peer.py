"""The peer of the training benchmarks: BertForMaskedLM of transformers with a span boundary head, the same weights and targets.

Attention is PyTorch's scaled_dot_product_attention. Every index of a batch is worked out before the step, which so has no
shape that depends on values. Shapes: B rows, L positions, K slots, V pieces.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

UNSCORED = -100  # the label of a position that has no target
SHARPER = {
    "token/embedding": np.float32(5),
    "kernel": np.float32(2),
}  # what weights are multiplied by to compare losses


class LossesDiffer(Exception):
    """The two sides do not compute the same: nothing may be timed."""


class Theirs:
    """BertForMaskedLM and a span boundary head in PyTorch, with the same weights; dropout is that of the encoder's settings."""

    def __init__(self, encoder: Any, params: Any, masked_only: bool = False, device: str = "cpu", bf16: bool = False):
        import torch
        import transformers

        from spanjax.objectives.loss_terms import canonical
        from spanjax.torch_format.configs import config_to_hf
        from spanjax.torch_format.families import BERT
        from spanjax.torch_format.tables import tensors_to_hf

        theirs = config_to_hf(encoder, None, {"mlm"}, "float32")
        config = transformers.BertConfig(**{**theirs, "attn_implementation": "sdpa"})
        self.model: Any = transformers.BertForMaskedLM(config)
        weights = dict(tensors_to_hf(canonical(params), encoder, BERT))
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in weights.items()}
        boundary = {name.split("predictions.", 1)[1]: t for name, t in tensors.items() if ".pair_target_" in name}
        self.model.load_state_dict({n: t for n, t in tensors.items() if ".pair_target_" not in n}, strict=False)
        self.head = boundary_head(encoder, boundary)
        self.masked_only, self.device, self.bf16 = masked_only, device, bf16
        self.modules = torch.nn.ModuleList([self.model, self.head]).to(device)
        fused = device != "cpu" or None
        self.optimizer = torch.optim.AdamW(self.modules.parameters(), lr=1e-4, weight_decay=0.1, fused=fused)
        self.objective: Any = self.losses

    def compile(self, mode: str = "default") -> None:
        """Runs both losses through torch.compile from now on: one program a shape, or one for all lengths ("dynamic")."""
        import torch

        torch._dynamo.config.recompile_limit = 64  # beyond it steps would run uncompiled, without an error
        dynamic = mode == "dynamic"
        self.objective = torch.compile(self.losses, dynamic=dynamic, mode="default" if dynamic else mode)

    def batch(self, batch: Mapping[str, Any], length: int | None = None) -> dict[str, Any]:
        """Our batch as PyTorch wants it, cut to `length` positions; without a mask where no position is padding."""
        import torch

        arrays = {name: torch.from_numpy(np.array(array)) for name, array in batch.items()}
        arrays = {name: array.long() if array.dtype == torch.int32 else array for name, array in arrays.items()}
        found = {name: arrays[f"{name}_BL"][:, :length] for name in ("tokens", "segments", "positions", "types")}
        used = found.pop("segments") > 0
        row, slot = torch.nonzero(arrays["slot_weight_BK"] > 0, as_tuple=True)
        found |= {"row": row, "place": arrays["slot_position_BK"][row, slot]}
        found["target"] = arrays["slot_target_BK"][row, slot]
        found["labels"] = torch.full_like(found["tokens"], UNSCORED)
        found["labels"][row, found["place"]] = found["target"]
        row, slot = torch.nonzero(arrays["slot_boundary_weight_BK"] > 0, as_tuple=True)
        found |= {name: arrays[f"slot_{name}_BK"][row, slot] for name in ("left", "right", "offset")}
        found |= {"span_row": row, "span_target": arrays["slot_target_BK"][row, slot]}
        if not bool(used.all()):
            found["mask"] = used.long()
        return {name: array.to(self.device).contiguous() for name, array in found.items()}

    def losses(self, batch: dict[str, Any]) -> tuple[Any, Any]:
        """MLM and SBO, means over their targets."""
        from torch.nn import functional

        hidden = self.model.bert(batch["tokens"], batch.get("mask"), batch["types"], batch["positions"])[0]
        if self.masked_only:
            scores = self.model.cls(hidden[batch["row"], batch["place"]])
            mlm = functional.cross_entropy(scores.float(), batch["target"])
        else:
            scores = self.model.cls(hidden)
            mlm = functional.cross_entropy(scores.float().flatten(0, 1), batch["labels"].flatten())
        left, right = (hidden[batch["span_row"], batch[side]] for side in ("left", "right"))
        vectors = self.head(left, right, batch["offset"])
        scores = functional.linear(vectors, self.model.bert.embeddings.word_embeddings.weight, self.head.bias)
        return mlm, functional.cross_entropy(scores.float(), batch["span_target"])

    def precision(self) -> Any:
        """Autocast to bfloat16 where that was asked for."""
        import torch

        return torch.autocast(self.device, torch.bfloat16) if self.bf16 else contextlib.nullcontext()

    def means(self, batch: dict[str, Any]) -> dict[str, float]:
        """Both losses without dropout, not compiled."""
        import torch

        self.modules.eval()
        with torch.no_grad(), self.precision():
            return dict(zip(("mlm", "sbo"), (float(loss) for loss in self.losses(batch)), strict=True))

    def run(self, batch: dict[str, Any]) -> None:
        """One update; on an accelerator it is under way when this returns."""
        import torch

        self.modules.train()
        self.optimizer.zero_grad()
        with self.precision():
            total = sum(self.objective(batch))
        total.backward()  # pyright: ignore[reportAttributeAccessIssue]
        torch.nn.utils.clip_grad_norm_(self.modules.parameters(), 1.0)
        self.optimizer.step()

    def steps(self, batch: dict[str, Any], count: int) -> None:
        """`count` updates, finished."""
        import torch

        for _ in range(count):
            self.run(batch)
        if self.device != "cpu":
            torch.cuda.synchronize()


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


def sharpened(params: Any) -> Any:
    """Fresh weights give nearly the same loss whatever is computed with them; of larger ones the losses tell."""
    from spanjax.sharding import map_named

    def larger(name: str, leaf: Any) -> Any:
        return leaf * next((times for end, times in SHARPER.items() if name.endswith(end)), np.float32(1))

    return map_named(larger, params)


def same_losses(ours: Mapping[str, float], theirs: Mapping[str, float], tolerance: float) -> str:
    """What was found equal, in words; LossesDiffer where a loss is more than `tolerance` of ours away."""
    shown = ", ".join(f"{name} {ours[name]:.6f} here, {theirs[name]:.6f} there" for name in sorted(ours))
    if not all(abs(theirs[name] - ours[name]) <= tolerance * abs(ours[name]) for name in ours):
        raise LossesDiffer(f"losses without dropout differ by more than {tolerance:g}: {shown}")
    return f"{shown}; equal to {tolerance:g}"
