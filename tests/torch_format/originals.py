"""The other side of the original layout: a torch module with its parameter names, and training checkpoints as its code
writes them, with objects of classes that exist only while the file is written."""

import argparse
import collections
import contextlib
import pathlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from tests.torch_format.references import REASON

torch = pytest.importorskip("torch", reason=REASON)
from torch.nn import Embedding, Linear, Module, ModuleList, Parameter, functional  # noqa: E402

VOCAB, HIDDEN, LAYERS, HEADS, INNER, POSITIONS = 113, 24, 2, 2, 40, 32  # heads of 12: not what shapes alone would say
CONFIG = {
    **{"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS},
    **{"intermediate_size": INNER, "max_position_embeddings": POSITIONS, "type_vocab_size": 2, "hidden_act": "relu"},
    **{"hidden_dropout_prob": 0.05, "attention_probs_dropout_prob": 0.15, "initializer_range": 0.03},
    "clamp_attention": True,
}
UPDATE = 12_345


class Norm(Module):
    """LayerNorm with the names of BERT's first PyTorch code."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma, self.beta = Parameter(torch.ones(HIDDEN)), Parameter(torch.zeros(HIDDEN))

    def forward(self, x: Any) -> Any:
        """Over the last axis."""
        return functional.layer_norm(x, (HIDDEN,), self.gamma, self.beta, 1e-12)


def part(**children: Module) -> Any:
    """A module of these children."""
    made = Module()
    for name, child in children.items():
        made.add_module(name, child)
    return made


def layer() -> Any:
    """One layer of BERT."""
    attention = part(**{name: Linear(HIDDEN, HIDDEN) for name in ("query", "key", "value")})
    return part(
        attention=part(self=attention, output=part(dense=Linear(HIDDEN, HIDDEN), LayerNorm=Norm())),
        intermediate=part(dense=Linear(HIDDEN, INNER)),
        output=part(dense=Linear(INNER, HIDDEN), LayerNorm=Norm()),
    )


class Original(Module):
    """BERT with the masked token head and the span boundary head, under the original's names, without pairs (--no-nsp)."""

    def __init__(self, offsets: int = 20, vocab: int = VOCAB):
        super().__init__()
        tables = {"word": vocab, "position": POSITIONS, "token_type": 2}
        embeddings = part(**{f"{name}_embeddings": Embedding(rows, HIDDEN) for name, rows in tables.items()})
        embeddings.add_module("LayerNorm", Norm())
        bert = part(embeddings=embeddings, encoder=part(layer=ModuleList(layer() for _ in range(LAYERS))))
        heads = part(
            predictions=part(transform=part(dense=Linear(HIDDEN, HIDDEN), LayerNorm=Norm())),
            pair_target_predictions=part(
                position_embeddings=Embedding(offsets, 200),
                mlp_layer_norm=part(
                    linear1=Linear(2 * HIDDEN + 200, HIDDEN), layer_norm1=Norm(),
                    linear2=Linear(HIDDEN, HIDDEN), layer_norm2=Norm(),
                ),
            ),
        )  # fmt: skip
        for head in heads.children():
            head.decoder, head.bias = Linear(HIDDEN, vocab, bias=False), Parameter(torch.zeros(vocab))
            head.decoder.weight = embeddings.word_embeddings.weight
        self.decoder, self.activation = part(bert=bert, cls=heads), functional.relu
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)

    def forward(self, tokens_RL: Any, left_RL: Any, right_RL: Any, offset_RL: Any) -> tuple[Any, Any]:
        """Logits [R, L, V] of both heads for full rows, the second for the span boundaries and offsets given."""
        bert, heads = self.decoder.bert, self.decoder.cls
        rows, length = tokens_RL.shape
        tables = bert.embeddings
        x = tables.word_embeddings(tokens_RL) + tables.token_type_embeddings.weight[0]
        x = tables.LayerNorm(x + tables.position_embeddings.weight[:length])
        for each in bert.encoder.layer:
            split = [
                getattr(each.attention.self, name)(x).view(rows, length, HEADS, -1).transpose(1, 2)
                for name in ("query", "key", "value")
            ]
            mixed = functional.scaled_dot_product_attention(*split).transpose(1, 2).reshape(x.shape)
            x = each.attention.output.LayerNorm(x + each.attention.output.dense(mixed))
            x = each.output.LayerNorm(x + each.output.dense(self.activation(each.intermediate.dense(x))))
        masked, boundary = heads.predictions, heads.pair_target_predictions
        transformed = masked.transform.LayerNorm(self.activation(masked.transform.dense(x)))
        row = torch.arange(rows)[:, None]
        y = torch.cat([x[row, left_RL], x[row, right_RL], boundary.position_embeddings(offset_RL)], dim=-1)
        mlp = boundary.mlp_layer_norm
        y = mlp.layer_norm2(self.activation(mlp.linear2(mlp.layer_norm1(self.activation(mlp.linear1(y))))))
        return masked.decoder(transformed) + masked.bias, boundary.decoder(y) + boundary.bias


@contextlib.contextmanager
def made_up(*names: str) -> Iterator[list[type]]:
    """Classes of these full names, importable inside of the block alone."""
    before, classes = set(sys.modules), []
    for name in names:
        *path, last = name.split(".")
        for end in range(1, len(path) + 1):
            sys.modules.setdefault(".".join(path[:end]), types.ModuleType(".".join(path[:end])))
        module = sys.modules[".".join(path)]
        classes.append(type(last, (), {"__module__": module.__name__}))
        setattr(module, last, classes[-1])
    try:
        yield classes
    finally:
        for name in sys.modules.keys() - before:
            del sys.modules[name]


def filled(kind: type, **attributes: Any) -> Any:
    """An object of the class with these attributes."""
    made = kind()
    vars(made).update(attributes)
    return made


def checkpoint(model: Any, path: pathlib.Path, is_zip: bool, dtype: Any, family: str = "pair_bert") -> pathlib.Path:
    """A training checkpoint as the original's trainer saves it: settings, meters, iterator and Adam's moments around it."""
    settings = CONFIG | {"vocab_size": len(model.decoder.bert.embeddings.word_embeddings.weight)}
    meters = ("AverageMeter", "StopwatchMeter", "TimeMeter")
    with made_up(f"fairseq.models.{family}.BertConfig", *(f"fairseq.meters.{name}" for name in meters)) as classes:
        config, average, watch, clock = classes
        moments = {"step": UPDATE, "exp_avg": torch.ones(9), "exp_avg_sq": torch.full((9,), 2.0)}
        written = {
            "args": argparse.Namespace(config=filled(config, **settings), max_pair_targets=20, lr=[1e-4], fp16=True),
            "model": {name: tensor.to(dtype) for name, tensor in model.state_dict().items()},
            "optimizer_history": [
                {"criterion_name": "SpanBertLoss", "optimizer_name": "FP16Optimizer", "num_updates": count,
                 "lr_scheduler_state": {"best": None}} for count in (500, UPDATE)
            ],
            "last_optimizer_state": {"state": {140_235_000: moments}, "param_groups": [{"lr": 1e-4, "params": [1]}]},
            "extra_state": {
                "train_iterator": {"epoch": 3, "iterations_in_epoch": 17},
                "train_meters": collections.OrderedDict(
                    train_loss=filled(average, val=torch.tensor(2.0), sum=1.5, count=3),
                    train_wall=filled(watch, sum=0.0, n=0, start_time=None), wps=filled(clock, init=0, start=1.0, n=2),
                ),
                "best": None,
            },
        }  # fmt: skip
        torch.save(written, path, _use_new_zipfile_serialization=is_zip)
    return path
