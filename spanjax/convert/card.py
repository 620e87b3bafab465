"""Model card of a converted model, filled from the metadata of its checkpoint; the user fills in the rest."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import yaml

from spanjax import __version__
from spanjax.cli import markdown_line, visible_name
from spanjax.convert.card_sections import citations, intended_use, limitations
from spanjax.pretrained.model import Model
from spanjax.run_format import stored_task
from spanjax.tasks.base import SCORE, HfHead
from spanjax.torch_format.configs import REMOTE_CODE, remote_config
from spanjax.torch_format.families import LIKE_ROBERTA, pretraining_class
from spanjax.torch_format.folder import EXTRA_HEADS
from spanjax.torch_format.task_configs import PLACES
from spanjax.torch_format.task_tables import PIPELINES, class_name
from spanjax.torch_format.tokenizer_files import tokenizer_notes
from spanjax.training.eval_history import KEY, stored_values
from spanjax.training.metrics import record_of
from spanjax.training.state import count_parameters

_SHOWN = 20  # labels that are listed one by one
_POOLED = ("bert", "albert", *LIKE_ROBERTA)  # families whose AutoModel has a pooler
_KINDS: Mapping[HfHead, str] = {
    "sequence": "classification of sentences and pairs of sentences",
    "token": "classification of tokens",
    "question": "question answering by a span of the text",
}

SENTENCES = "sentence-transformers"


def model_card(
    model: Model,
    name: str,
    license_: str,
    language: str,
    base_model: str = "",
    library: str = "transformers",
    usage: Sequence[str] = (),
) -> str:
    """Builds README.md: front matter, usage, intended use and limitations, tables of architecture, data, training, results and
    hardware, and citations. `base_model` is the Hub's name of the model that training started from, `library` that of the folder;
    `usage` the lines that use the model in a library other than transformers and sentence-transformers."""
    given = {"license": license_, "language": language}
    bare = "fill-mask" if "mlm" in model.params else "feature-extraction"
    sentence_vectors = library == SENTENCES
    pipeline = "sentence-similarity" if sentence_vectors else PIPELINES[model.kind] if model.kind else bare
    facts: dict[str, Any] = {"library_name": library, "pipeline_tag": pipeline}
    facts |= {key: value for key, value in given.items() if value}
    facts["tags"] = [
        "spanjax",
        *(["spanbert"] if "sbo" in model.params else []),
        *([library] if sentence_vectors else []),
    ]
    # a converted folder of PyTorch weights has no run and no rows: its card lacks these sections
    run, rows, lines = model.meta.get("run", {}), model.meta.get("rows", {}), _lines(model)
    facts |= {"base_model": base_model} if base_model else {}
    facts |= _model_index(model, name, pipeline, rows, lines)
    front = ["---", *yaml.safe_dump(facts, sort_keys=False, allow_unicode=True).splitlines()]
    missing = {key: "TO FILL IN" for key, value in given.items() if not value}
    # a path of this machine is no name of the Hub: only its owner knows that name
    if not base_model and (started := model.meta.get("pretrained") or PurePath(run.get("init_from", "")).name):
        missing["base_model"] = f"TO FILL IN, training started from {json.dumps(visible_name(started))}"
    front += [*(f"# {key}: {value}" for key, value in missing.items()), "---", ""]
    body = [
        f"# {markdown_line(name)}",
        "",
        f"Converted by spanjax {__version__} from step {model.step:,} of {_code(model.name)}.",
        "",
    ]
    body += _sentence_usage(model, name) if sentence_vectors else []
    body += (list(usage) or _usage(model, name)) + _listed("Intended use", intended_use(model))
    body += _section("Task", _task(model)) if model.kind else []
    body += _section("Architecture", _architecture(model))
    body += _section("Data", _data(rows, run)) if rows else []
    body += _section("Training", _training(run, model, rows)) if run else []
    body += _section("Results", _results(lines)) + _section("Hardware and time", _hardware(model, lines))
    notes = [*(tokenizer_notes(model.vocabulary) if model.vocabulary else []), *model.notes]
    body += _listed("Limitations", limitations(model, rows, language)) + (_listed("Notes", notes) if notes else [])
    body += ["## Citation", "", "```bibtex", *citations(model, run), "```", ""]
    return "\n".join([*front, *body])


def _sentence_usage(model: Model, name: str) -> list[str]:
    return [
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        f"model = SentenceTransformer({_quoted(name)})",
        'vectors = model.encode(["a text", "another"])',
        "model.similarity(vectors, vectors)",
        "```",
        "",
        f"Vectors are the {'mean over all tokens' if model.pooling == 'mean' else 'states of [CLS]'}, compared by cosine"
        " similarity.",
        "",
    ]


def _usage(model: Model, name: str) -> list[str]:
    family = model.family
    known = class_name(family, model.kind) if model.kind else ""
    known = known or pretraining_class(family, model.parts - {"pair"})
    lines = ["```python", f"from transformers import AutoTokenizer, {known}", ""]
    lines += [
        f"tokenizer = AutoTokenizer.from_pretrained({_quoted(name)})",
        f"model = {known}.from_pretrained({_quoted(name)})",
        "```",
        "",
    ]
    if "sbo" in model.params:
        lines += [
            f"The head of the span boundary objective is in `{EXTRA_HEADS}` under the names of the released SpanBERT code "
            "(`cls.pair_target_predictions.*`); transformers has no class for it.",
            "",
        ]
    # the condition on which `to_torch` copies the module
    if not model.kind and remote_config(model.params, family):
        lines += [
            f"The class in `{REMOTE_CODE}` has both heads. It is run only where you ask for it:",
            "",
            "```python",
            "from transformers import AutoModelForPreTraining",
            "",
            f"model = AutoModelForPreTraining.from_pretrained({_quoted(name)}, trust_remote_code=True)",
            'model.fill_spans(tokenizer, f"The {tokenizer.mask_token} {tokenizer.mask_token} sat.", head="sbo")',
            "```",
            "",
        ]
    if "pooler" not in model.params and model.kind is None and family.model_type in _POOLED:
        lines += [
            "There is no pooler: `AutoModel` draws one at random unless it is told `add_pooling_layer=False`.",
            "",
        ]
    return lines


def _section(title: str, facts: Mapping[str, Any]) -> list[str]:
    listed = [f"| {_cell(name)} | {_cell(value)} |" for name, value in facts.items() if value not in (None, "")]
    return [f"## {title}", "", "| | |", "|---|---|", *listed, ""] if listed else []


def _listed(title: str, items: Sequence[str]) -> list[str]:
    return [f"## {title}", "", *(f"- {markdown_line(item)}" for item in items), ""]


def _model_index(
    model: Model, name: str, pipeline: str, rows: Mapping[str, Any], lines: list[dict[str, Any]]
) -> dict[str, Any]:
    """Metrics of held-out rows or dev examples as the Hub's `model-index`; {} if none were measured."""
    values = _measured(lines) or stored_values(model.meta)
    if model.kind:
        values = {key.removeprefix(SCORE): value for key, value in values.items() if key.startswith(SCORE)}
    metrics = [
        {"type": key.rpartition("/")[2], "name": key, "value": float(value)}
        for key, value in values.items()
        if math.isfinite(value)
    ]
    if not metrics:
        return {}
    # the Hub requires type and name of a data set; "other" is one that is not on the Hub
    if model.kind:
        title = (model.task or {}).get("class") or "task"
        dataset = {"type": "other", "name": f"dev examples of {title}", "split": "dev"}
    else:
        title = pipeline
        dataset = {
            "type": "other",
            "name": f"held-out rows of {rows.get('source') or 'the run'}",
            "split": "validation",
        }
        dataset |= {"revision": rows["fingerprint"]} if "fingerprint" in rows else {}
    result = {"task": {"type": pipeline, "name": title}, "dataset": dataset, "metrics": metrics}
    return {"model-index": [{"name": name, "results": [result]}]}


def _architecture(model: Model) -> dict[str, Any]:
    encoder = model.encoder
    sizes = (encoder.layers, encoder.hidden_size, encoder.heads, encoder.intermediate_size)
    return {
        "family": model.family.model_type,
        "parameters": f"{count_parameters(model.params, encoder):,}",
        "layers, hidden, heads, feed-forward": ", ".join(map(str, sizes)),
        "positions": encoder.positions,
        "heads": ", ".join(sorted(model.parts - {"encoder"})) or "none",
        "vocabulary": f"{encoder.vocab_size:,} pieces"
        + (f", {model.vocabulary.kind}, {model.vocabulary.casing}" if model.vocabulary else ""),
    }


def task_words(model: Model) -> str:
    """Describes the task of a fine-tuned model, and its labels, in one line."""
    assert model.kind is not None
    labels = (model.task or {}).get("labels") or ()
    listed = ", ".join(map(str, labels[:_SHOWN])) + ", ..." * (len(labels) > _SHOWN)
    number = model.kind == "sequence" and model.params["classifier"]["bias"].shape == (1,)
    what = "a number for sentences and pairs of sentences" if number else _KINDS[model.kind]
    return f"{what}, {len(labels)} labels: {listed}" if labels and not number else what


def _task(model: Model) -> dict[str, Any]:
    task = model.task or {}
    examples = model.meta.get("examples")
    name = " ".join(str(task[key]) for key in ("class", *stored_task(task).card_settings) if task.get(key))
    return {
        "task": name or None,
        "predicts": task_words(model),
        "length": task.get("length"),
        "examples": ", ".join(f"{part} {count:,}" for part, count in examples.items()) if examples else None,
        "fingerprint of the training examples": _code(model.meta.get("run", {}).get("rows_fingerprint") or ""),
        "pretrained weights": model.meta.get("pretrained"),
        **_scores(model),
    }


def _scores(model: Model) -> dict[str, str]:
    """Dev scores at the checkpoint's step, from the run's metrics; else its selection metric."""
    start = "held-out score/"
    found = {name: value for name, value in _results(_lines(model)).items() if name.startswith(start)}
    if found:
        return {f"dev {name.removeprefix(start)}": value for name, value in found.items()}
    history = dict(model.meta.get(KEY) or ())
    return {"dev score": f"{-history[model.step]:.4f}"} if model.step in history else {}


def _data(rows: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    folders = [PurePath(each).name for each in run.get("data", {}).get("rows") or ()]
    counts = ("documents", "sentences", "text_tokens", "rows", "length")
    return {
        "source": rows.get("source"),
        **{name.replace("_", " "): f"{rows[name]:,}" for name in counts if name in rows},
        "folder of rows": ", ".join(folders),
        "fingerprint of its manifest": _code(rows.get("fingerprint", "")),
        "fingerprint of its vocabulary": _code(rows.get("vocabulary_fingerprint", "")),
        "prepared by": f"spanjax {rows['code_version']}" if rows.get("code_version") else None,
    }


def _training(run: Mapping[str, Any], model: Model, rows: Mapping[str, Any]) -> dict[str, Any]:
    objective, optimizer, step = run.get("objective", {}), run.get("optimizer", {}), model.step
    if model.task:  # paths of examples and labels are of no use to others
        objective = {name: value for name, value in objective.items() if name not in (*PLACES, "labels")}
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
            inner = ", ".join(f"{name}={one(each)}" for name, each in value.items() if name not in ("class", "module"))
            return f"{value.get('class', '')}({inner})"
        return f"[{', '.join(map(one, value))}]" if isinstance(value, list) else json.dumps(value)

    return _code(one(described)) if described else ""


def _cell(value: Any) -> str:
    text = str(value)
    is_code = len(text) > 2 and text[0] == text[-1] == "`"  # made by `_code`
    return (text if is_code else markdown_line(text)).replace("|", "\\|")


def _quoted(text: str) -> str:
    """A string literal of Python on one line, without signs that begin HTML."""
    return json.dumps(text).replace("<", "\\u003c").replace(">", "\\u003e")


def _code(text: str) -> str:
    """Text as code within a line of Markdown: nothing in it ends the code or begins HTML."""
    if not text:
        return ""
    safe = visible_name(text).replace("`", "\\u0060").replace("<", "\\u003c").replace(">", "\\u003e")
    return f"`{safe}`"


def _lines(model: Model) -> list[dict[str, Any]]:
    """The run's metrics up to the checkpoint's step."""
    file = model.source.parent.parent / "metrics.jsonl"
    found = map(record_of, file.read_bytes().split(b"\n")) if file.is_file() else ()
    return [record for record in found if record and record["step"] <= model.step]


def _measured(lines: list[dict[str, Any]]) -> dict[str, float]:
    """The newest value of every metric of the run's evaluations."""
    values: dict[str, float] = {}
    for line in lines:
        values |= {name.removeprefix("eval/"): v for name, v in line.items() if name.startswith("eval/")}
    return values


def _results(lines: list[dict[str, Any]]) -> dict[str, str]:
    return {f"held-out {name}": f"{value:.4f}" for name, value in _measured(lines).items()}


def _hardware(model: Model, lines: list[dict[str, Any]]) -> dict[str, Any]:
    hardware = model.meta.get("hardware", {})
    seconds, before = 0.0, 0
    for line in lines:
        if line.get("speed/steps_per_s"):
            seconds, before = seconds + (line["step"] - before) / line["speed/steps_per_s"], line["step"]
    return {**hardware, "training time": f"{seconds / 3600:.2f} h" if seconds else None}
