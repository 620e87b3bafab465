"""SpanBERT for transformers: BERT or ModernBERT with the masked token head and the span boundary head (Joshi et al., 2020,
section 3).

    from transformers import AutoModelForPreTraining, AutoTokenizer

    model = AutoModelForPreTraining.from_pretrained(FOLDER, trust_remote_code=True)
    model.fill_spans(AutoTokenizer.from_pretrained(FOLDER), "The [MASK] [MASK] sat.", head="sbo")

spanjax copies this file unchanged into the folders that it exports and never imports it. The weights of the span boundary head
lie in sbo_head.safetensors, so that transformers' own classes load the rest of the folder without a warning.

Shapes: B rows, L positions, S spans a row, N targets of the span boundary head, K masks of a span, D hidden size, V vocabulary.
"""

import os
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from transformers import BertModel, BertPreTrainedModel, ModernBertForMaskedLM, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.models.bert.modeling_bert import BertLMPredictionHead
from transformers.utils.generic import ModelOutput
from transformers.utils.hub import cached_file

SBO_FILE = "sbo_head.safetensors"
PREFIX = "cls.pair_target_predictions."
NO_TARGET = -100  # label of a position without a target, as everywhere in transformers
SETTINGS = {"max_offset": 15, "position_size": 200, "pooler": False, "pair": False}
"""Defaults of config.spanbert: rows and width of the table of offsets; are a pooler and a classifier of pairs in the weights?"""
_HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
_COMMIT = ("commit_message", "create_pr", "private", "revision", "token")


@dataclass
class SpanBertOutput(ModelOutput):
    """Losses in nats, each a mean over its targets, and scores; None for those that the inputs do not determine."""

    loss: torch.Tensor | None = None  # the sum of the others
    mlm_loss: torch.Tensor | None = None
    sbo_loss: torch.Tensor | None = None
    pair_loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None  # [B, L, V], of the masked token head
    sbo_logits: torch.Tensor | None = None  # [N, V], ordered by row and position
    seq_relationship_logits: torch.Tensor | None = None  # [B, 2]
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


class BoundaryLayers(nn.Module):
    """Two dense layers, each with activation and LayerNorm."""

    def __init__(self, config: Any, width: int):
        super().__init__()
        modern = config.model_type == "modernbert"
        size, epsilon = config.hidden_size, config.norm_eps if modern else config.layer_norm_eps
        self.linear1 = nn.Linear(2 * size + width, size)
        self.layer_norm1 = nn.LayerNorm(size, eps=epsilon)
        self.linear2 = nn.Linear(size, size)
        self.layer_norm2 = nn.LayerNorm(size, eps=epsilon)
        self.activation = ACT2FN[config.hidden_activation if modern else config.hidden_act]

    def forward(self, joined: torch.Tensor) -> torch.Tensor:
        """Returns vectors [N, D]."""
        inner = self.layer_norm1(self.activation(self.linear1(joined)))
        return self.layer_norm2(self.activation(self.linear2(inner)))


class SpanBoundaryHead(nn.Module):
    """Predicts a token of a span from the hidden states of its two neighbours and its offset in the span."""

    def __init__(self, config: Any):
        super().__init__()
        settings = settings_of(config)
        self.position_embeddings = nn.Embedding(settings["max_offset"], settings["position_size"])
        self.mlp_layer_norm = BoundaryLayers(config, settings["position_size"])
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(
        self, left: torch.Tensor, right: torch.Tensor, offset: torch.Tensor, table: torch.Tensor
    ) -> torch.Tensor:
        """Returns scores [N, V] of hidden states [N, D], [N, D] and offsets [N]; `table` [V, D] is that of the tokens."""
        joined = torch.cat([left, right, self.position_embeddings(offset)], dim=-1)
        return functional.linear(self.mlp_layer_norm(joined), table, self.bias)


class SpanBertHeads(nn.Module):
    """The heads, under the names of the released SpanBERT code."""

    def __init__(self, config: Any):
        super().__init__()
        self.predictions = BertLMPredictionHead(config)
        self.pair_target_predictions = SpanBoundaryHead(config)
        if settings_of(config)["pair"]:
            self.seq_relationship = nn.Linear(config.hidden_size, 2)


def settings_of(config: Any) -> dict[str, Any]:
    """Returns the settings of the heads in a config, with defaults for missing ones."""
    return {**SETTINGS, **(getattr(config, "spanbert", None) or {})}


def mean_loss(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Returns the mean cross-entropy in nats over the targets that are not NO_TARGET; 0 without any."""
    total = functional.cross_entropy(scores.float(), target, ignore_index=NO_TARGET, reduction="sum")
    return total / (target != NO_TARGET).sum().clamp(min=1)


def runs(masked: torch.Tensor) -> torch.Tensor:
    """Returns [B, L, 2]: first and last position of the run of True that a position is in, -1 outside of runs; bool [B, L]."""
    place = torch.arange(masked.shape[1], device=masked.device).expand_as(masked)
    before = functional.pad(masked, (1, 0))[:, :-1]
    after = functional.pad(masked, (0, 1))[:, 1:]
    first = torch.where(masked & ~before, place, 0).cummax(dim=1).values
    # the nearest end at or behind a position is the smallest of those that follow
    end = torch.where(masked & ~after, place, masked.shape[1]).flip(1).cummin(dim=1).values.flip(1)
    return torch.where(masked[..., None], torch.stack([first, end], dim=-1), -1)


def covering(spans: torch.Tensor, length: int) -> torch.Tensor:
    """Returns [B, L, 2]: first and last position of the span that covers a position, -1 where none does; int [B, S, 2]."""
    place = torch.arange(length, device=spans.device)
    first, last = spans[:, :, :1], spans[:, :, 1:]
    inside = (place >= first) & (place <= last) & (first >= 0)
    index = inside.int().argmax(dim=1)[..., None].expand(-1, -1, 2)
    return torch.where(inside.any(dim=1)[..., None], spans.gather(1, index), -1)


class WithBoundaryHead(PreTrainedModel):
    """A model with `cls.pair_target_predictions`, whose weights lie in SBO_FILE: files, scores and fills."""

    _keys_to_ignore_on_load_missing = [PREFIX.replace(".", r"\.")]  # they come from SBO_FILE
    cls: Any

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        """Loads a folder or a model of the Hub, the span boundary head from SBO_FILE; arguments as in transformers.

        OSError if that file is missing, RuntimeError if its tensors have other names or shapes.
        """
        loaded = super().from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs)
        # with output_loading_info it is a pair; without a path all tensors are in `state_dict`
        model: Any = loaded[0] if isinstance(loaded, tuple) else loaded
        if pretrained_model_name_or_path is not None:
            hub = {name: kwargs[name] for name in _HUB if name in kwargs}
            file = cached_file(pretrained_model_name_or_path, SBO_FILE, **hub)
            tensors = {name.removeprefix(PREFIX): tensor for name, tensor in load_file(str(file)).items()}
            model.cls.pair_target_predictions.load_state_dict(tensors)
        return loaded

    def save_pretrained(
        self,
        save_directory: Any,
        is_main_process: bool = True,
        state_dict: dict[str, torch.Tensor] | None = None,
        push_to_hub: bool = False,
        **kwargs: Any,
    ) -> None:
        """Writes a folder that `from_pretrained` and transformers' own classes load, the span boundary head into SBO_FILE."""
        whole = self.state_dict() if state_dict is None else state_dict
        head = {name: tensor.detach().cpu().contiguous() for name, tensor in whole.items() if name.startswith(PREFIX)}
        rest = {name: tensor for name, tensor in whole.items() if name not in head}
        super().save_pretrained(save_directory, is_main_process=is_main_process, state_dict=rest, **kwargs)
        if is_main_process:
            save_file(head, os.path.join(save_directory, SBO_FILE), metadata={"format": "pt"})
        if push_to_hub:
            # transformers would upload before SBO_FILE is written
            name = kwargs.get("repo_id") or os.path.basename(os.path.abspath(save_directory))
            self.push_to_hub(name, **{each: kwargs[each] for each in _COMMIT if each in kwargs})

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """Resizes the token table and the biases of both heads; new tokens get a bias of 0."""
        table, head = super().resize_token_embeddings(*args, **kwargs), self.cls.pair_target_predictions
        bias = head.bias.data.new_zeros(table.weight.shape[0])
        kept = min(len(bias), len(head.bias))
        bias[:kept] = head.bias.data[:kept]
        head.bias = nn.Parameter(bias)
        return table

    def _boundary_scores(
        self, hidden: torch.Tensor, labels: torch.Tensor | None, spans: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns scores [N, V] of the targets that have two neighbours and an offset in the table, and their mean loss."""
        length, head = hidden.shape[1], self.cls.pair_target_predictions
        masked = None if labels is None else labels != NO_TARGET
        if spans is not None:
            edges = covering(spans, length)
        else:
            assert masked is not None
            edges = runs(masked)
        first, last = edges.unbind(-1)
        offset = torch.arange(length, device=hidden.device) - first
        wanted = (first > 0) & (last < length - 1) & (offset < head.position_embeddings.num_embeddings)
        wanted = wanted if masked is None else wanted & masked
        row, place = wanted.nonzero(as_tuple=True)
        left, right = hidden[row, first[row, place] - 1], hidden[row, last[row, place] + 1]
        scores = head(left, right, offset[row, place], self.get_input_embeddings().weight)
        return scores, None if labels is None else mean_loss(scores, labels[row, place])

    @torch.no_grad()
    def fill_spans(self, tokenizer: Any, text: str, head: str = "both", top: int = 5) -> list[dict[str, Any]]:
        """Fills every run of the tokenizer's mask token in a text, by "mlm", by "sbo", or by the product of "both".

        Returns a dict a span: `start` (index among the tokens, [CLS] is 0), `text` (the most probable token at every position),
        `log_probability` (their sum, natural logarithm) and `candidates` (of every position the `top` tokens with their
        probabilities). ValueError without a mask, for an unknown head, or for a span that is too long for the span boundary head.
        """
        if head not in ("mlm", "sbo", "both"):
            raise ValueError(f"head is {head!r}: expected 'mlm', 'sbo' or 'both'")
        encoded = tokenizer(text, return_tensors="pt").to(self.device)
        masked = encoded["input_ids"] == tokenizer.mask_token_id
        if not masked.any():
            raise ValueError(f"the text {text!r} has no {tokenizer.mask_token}: write one for every token to fill in")
        edges = runs(masked)[masked]
        spans = edges.unique(dim=0)
        sizes = (spans[:, 1] - spans[:, 0] + 1).tolist()
        reach = self.cls.pair_target_predictions.position_embeddings.num_embeddings
        if head != "mlm" and max(sizes) > reach:
            raise ValueError(
                f"a span of {max(sizes)} tokens: the span boundary head fills at most {reach}, use head='mlm'"
            )
        training = self.training
        self.eval()
        try:
            output = self(**encoded, spans=spans[None], return_dict=True)
        finally:
            self.train(training)
        scores = {"mlm": output.logits[masked], "sbo": output.sbo_logits}
        parts = [scores[name].float().log_softmax(-1) for name in scores if head in (name, "both")]
        # the product of both, normalised again
        log_KV = torch.stack(parts).sum(dim=0).log_softmax(-1)
        starts = spans[:, 0].tolist()
        return [
            self._filled(tokenizer, start, log, top) for start, log in zip(starts, log_KV.split(sizes), strict=True)
        ]

    def _filled(self, tokenizer: Any, start: int, log_KV: torch.Tensor, top: int) -> dict[str, Any]:
        best = log_KV.topk(min(top, log_KV.shape[1]), dim=-1)
        candidates = [
            list(zip(tokenizer.convert_ids_to_tokens(ids), chances, strict=True))
            for ids, chances in zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
        ]
        return {
            "start": start,
            "text": tokenizer.decode(best.indices[:, 0].tolist()),
            "log_probability": float(best.values[:, 0].sum()),
            "candidates": candidates,
        }


class SpanBertForPreTraining(WithBoundaryHead, BertPreTrainedModel):
    """BERT with SpanBERT's two heads, and with the classifier of pairs where the weights have one."""

    _tied_weights_keys = {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }

    def __init__(self, config: Any):
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=settings_of(config)["pooler"])
        self.cls = SpanBertHeads(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """Returns the decoder of the masked token head."""
        return self.cls.predictions.decoder

    def set_output_embeddings(self, new_embeddings: Any) -> None:
        """Replaces the decoder of the masked token head and its bias."""
        self.cls.predictions.decoder = new_embeddings
        self.cls.predictions.bias = new_embeddings.bias

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        spans: torch.Tensor | None = None,
        next_sentence_label: torch.Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Returns a SpanBertOutput.

        `labels` [B, L] holds the original ids of masked positions, else -100. `spans` [B, S, 2] holds the first and last position
        of every masked span, padded with -1; by default every run of labels is a span. Of targets in no span, at an offset
        from `max_offset` on, or in a span without two neighbours the masked token head alone has a loss. `next_sentence_label`
        [B] is 1 for a random or swapped pair. `attention_mask` is [B, L], or [B, 1, L, L] where rows hold several texts.
        """
        output = self.bert(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            return_dict=True,
            **kwargs,
        )
        hidden, mlm, sbo, pair, pair_logits = output.last_hidden_state, None, None, None, None
        logits, sbo_logits = self.cls.predictions(hidden), None
        if labels is not None:
            mlm = mean_loss(logits.flatten(0, 1), labels.flatten())
        if labels is not None or spans is not None:
            sbo_logits, sbo = self._boundary_scores(hidden, labels, spans)
        if hasattr(self.cls, "seq_relationship"):
            pair_logits = self.cls.seq_relationship(output.pooler_output)
            if next_sentence_label is not None:
                pair = mean_loss(pair_logits, next_sentence_label.flatten())
        losses = [loss for loss in (mlm, sbo, pair) if loss is not None]
        total = torch.stack(losses).sum() if losses else None
        found = SpanBertOutput(
            *(total, mlm, sbo, pair, logits, sbo_logits, pair_logits, output.hidden_states, output.attentions)
        )
        # a tuple for torch.jit and for callers that index
        as_dict = getattr(self.config, "return_dict", True) if return_dict is None else return_dict
        return found if as_dict else found.to_tuple()


class SpanModernBertForPreTraining(WithBoundaryHead, ModernBertForMaskedLM):
    """ModernBERT with SpanBERT's two heads; its masked token head has the names of transformers' class."""

    def __init__(self, config: Any):
        super().__init__(config)
        self.cls = nn.ModuleDict({"pair_target_predictions": SpanBoundaryHead(config)})
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        spans: torch.Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Returns a SpanBertOutput; `labels` and `spans` as in SpanBertForPreTraining, `attention_mask` is [B, L].

        With local layers rows of several texts need a dict of masks [B, 1, L, L]: "full_attention" and "sliding_attention".
        """
        # transformers would take one such mask for both kinds of layers, and local layers would see the whole text
        local = "sliding_attention" in (getattr(self.config, "layer_types", None) or ())
        if local and isinstance(attention_mask, torch.Tensor) and attention_mask.ndim > 2:
            raise ValueError(
                f"attention_mask has the shape {tuple(attention_mask.shape)}: expected [batch, length], or with local layers a"
                " dict of two such masks, 'full_attention' and 'sliding_attention' (the same within the window)"
            )
        output = self.model(
            input_ids, attention_mask=attention_mask, position_ids=position_ids, inputs_embeds=inputs_embeds, **kwargs
        )
        hidden, mlm, sbo, sbo_logits = output.last_hidden_state, None, None, None
        logits = self.decoder(self.head(hidden))
        if labels is not None:
            mlm = mean_loss(logits.flatten(0, 1), labels.flatten())
        if labels is not None or spans is not None:
            sbo_logits, sbo = self._boundary_scores(hidden, labels, spans)
        total = None if mlm is None or sbo is None else mlm + sbo
        found = SpanBertOutput(
            *(total, mlm, sbo, None, logits, sbo_logits, None, output.hidden_states, output.attentions)
        )
        # a tuple for torch.jit and for callers that index
        as_dict = getattr(self.config, "return_dict", True) if return_dict is None else return_dict
        return found if as_dict else found.to_tuple()
