"""The model card of a converted model, filled from what its checkpoint says of the run; the rest is left to be filled in."""

import json
from collections.abc import Mapping
from typing import Any

from spanjax import __version__
from spanjax.model import Model
from spanjax.torch_format.folder import EXTRA_HEADS
from spanjax.torch_format.tables import family_of
from spanjax.torch_format.tokenizer_files import tokenizer_notes
from spanjax.training.state import count_parameters

_CLASSES = {"bert": "Bert", "roberta": "Roberta", "albert": "Albert"}


def model_card(model: Model, name: str, license_: str, language: str) -> str:
    """README.md: front matter, how to use the model, and tables of architecture, data, training, results and hardware."""
    front = [
        "---",
        "library_name: transformers",
        "pipeline_tag: " + ("fill-mask" if "mlm" in model.params else "feature-extraction"),
    ]
    front += [f"license: {license_}"] if license_ else ["# license: TO FILL IN"]
    front += [f"language: {language}"] if language else ["# language: TO FILL IN"]
    front += ["tags:", "- spanjax", *(["- spanbert"] if "sbo" in model.params else []), "---", ""]
    run, rows, lines = model.meta.get("run", {}), model.meta.get("rows", {}), _lines(model)
    body = [
        f"# {name}",
        "",
        f"Converted by spanjax {__version__} from step {model.step:,} of `{model.name}`.",
        "",
    ]
    body += _usage(model, name)
    body += _section("Architecture", _architecture(model))
    body += _section("Data", _data(rows)) if rows else []
    body += _section("Training", _training(run, model.step, rows)) if run else []
    body += _section("Results", _results(lines)) + _section("Hardware and time", _hardware(model, lines))
    notes = [*(tokenizer_notes(model.vocabulary) if model.vocabulary else []), *model.said]
    body += ["## Notes", "", *(f"- {note}" for note in notes), ""] if notes else []
    return "\n".join([*front, *body])


def _usage(model: Model, name: str) -> list[str]:
    kind = _CLASSES[family_of(model.encoder).model_type]
    head = "ForMaskedLM" if "mlm" in model.params else "Model"
    lines = ["```python", f"from transformers import AutoTokenizer, {kind}{head}", ""]
    lines += [
        f'tokenizer = AutoTokenizer.from_pretrained("{name}")',
        f'model = {kind}{head}.from_pretrained("{name}")',
        "```",
        "",
    ]
    if "sbo" in model.params:
        lines += [
            f"The head of the span boundary objective is in `{EXTRA_HEADS}` under the names of the released SpanBERT code "
            "(`cls.pair_target_predictions.*`); transformers has no class for it.",
            "",
        ]
    if "pooler" not in model.params:
        lines += [
            "There is no pooler: `AutoModel` draws one at random unless it is told `add_pooling_layer=False`.",
            "",
        ]
    return lines


def _section(title: str, facts: Mapping[str, Any]) -> list[str]:
    shown = [f"| {name} | {value} |" for name, value in facts.items() if value not in (None, "")]
    return [f"## {title}", "", "| | |", "|---|---|", *shown, ""] if shown else []


def _architecture(model: Model) -> dict[str, Any]:
    encoder = model.encoder
    sizes = (encoder.layers, encoder.hidden_size, encoder.heads, encoder.intermediate_size)
    return {
        "family": family_of(encoder).model_type,
        "parameters": f"{count_parameters(model.params, encoder):,}",
        "layers, hidden, heads, feed-forward": ", ".join(map(str, sizes)),
        "positions": encoder.positions,
        "heads of pretraining": ", ".join(sorted(model.parts - {"encoder"})) or "none",
        "vocabulary": f"{encoder.vocab_size:,} pieces"
        + (f", {model.vocabulary.kind}, {model.vocabulary.casing}" if model.vocabulary else ""),
    }


def _data(rows: Mapping[str, Any]) -> dict[str, Any]:
    counts = ("documents", "sentences", "text_tokens", "rows", "length")
    return {
        "source": rows.get("source"),
        **{name.replace("_", " "): f"{rows[name]:,}" for name in counts if name in rows},
    }


def _training(run: Mapping[str, Any], step: int, rows: Mapping[str, Any]) -> dict[str, Any]:
    objective, optimizer = run.get("objective", {}), run.get("optimizer", {})
    batch = run.get("batch_size", 0)
    seen = step * batch * rows.get("length", 0) * rows.get("fill", 1.0)
    return {
        "objective": _words(objective),
        "steps": f"{step:,} of {run.get('steps', 0):,}",
        "rows a batch": batch,
        "tokens seen": f"{seen:,.0f}" if seen else None,
        "optimizer": _words(optimizer),
        "compute type": run.get("compute_dtype"),
        "seed": run.get("seed"),
        "started from": run.get("init_from") or None,
    }


def _words(described: Mapping[str, Any]) -> str:
    """A described setting in one line: Class(name=value, ...)."""

    def one(value: Any) -> str:
        if isinstance(value, Mapping):
            inner = ", ".join(f"{name}={one(each)}" for name, each in value.items() if name != "class")
            return f"{value.get('class', '')}({inner})"
        return f"[{', '.join(map(one, value))}]" if isinstance(value, list) else json.dumps(value)

    return f"`{one(described)}`" if described else ""


def _lines(model: Model) -> list[dict[str, Any]]:
    """The run's metrics up to the checkpoint's step."""
    file = model.source.parent.parent / "metrics.jsonl"
    found = []
    for line in file.read_text().splitlines() if file.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # the half line of a killed process
    return [line for line in found if line.get("step", 0) <= model.step]


def _results(lines: list[dict[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for line in lines:
        values |= {
            f"held-out {name.removeprefix('eval/')}": f"{v:.4f}" for name, v in line.items() if name.startswith("eval/")
        }
    return values


def _hardware(model: Model, lines: list[dict[str, Any]]) -> dict[str, Any]:
    hardware = model.meta.get("hardware", {})
    seconds, before = 0.0, 0
    for line in lines:
        if line.get("speed/steps_per_s"):
            seconds, before = seconds + (line["step"] - before) / line["speed/steps_per_s"], line["step"]
    return {**hardware, "training time": f"{seconds / 3600:.2f} h" if seconds else None}
