"""Weights from run directories, checkpoints and folders of PyTorch weights, as one `Model`."""

import base64
import pathlib
from collections.abc import Mapping
from typing import Any, get_args

from spanjax import __version__
from spanjax.bounds import raise_problems, type_problems
from spanjax.data.vocab.loading import vocabulary_from_files, with_unused_ids
from spanjax.nn.config import EncoderConfig
from spanjax.objectives.base import Objective, Pretraining
from spanjax.objectives.loss_terms import PAIR_NAMES, canonical
from spanjax.pretrained.electra import with_generator
from spanjax.pretrained.model import Model
from spanjax.pretrained.packaged import packaged_folder
from spanjax.run_format import MODEL_TYPE, described_task, restored
from spanjax.sharding import named_leaves
from spanjax.storage.inputs import local_copy
from spanjax.tasks.base import Task, TextPooling
from spanjax.torch_format.configs import config_from_hf, gelu_problem
from spanjax.torch_format.deberta import POOLERS, with_one_token_head
from spanjax.torch_format.families import BERT, DEBERTA, family_of
from spanjax.torch_format.folder import FolderContents, is_weights, read_folder
from spanjax.torch_format.guessed import guessed_config
from spanjax.torch_format.names import family_of_names, known_names
from spanjax.torch_format.sentence_modules import pooling_of_folder
from spanjax.torch_format.tables import params_from_hf
from spanjax.torch_format.task_configs import described_task_from_hf
from spanjax.torch_format.task_tables import head_from_hf, with_heads, without_left_over
from spanjax.torch_format.tokenizer_files import vocabulary_of_folder
from spanjax.training.checkpoint import read_weights
from spanjax.training.checkpoint_files import best_step, steps_of, stored_losses, stored_meta, whole_step


def load_model(path: str | pathlib.Path, config: str | pathlib.Path | None = None) -> Model:
    """Loads a whole checkpoint of a run directory (the newest; of a fine-tuned run the best), one checkpoint, PyTorch weights, or
    an installed model by its name (see `packaged`); an existing path goes before such a name. Files at
    a gs:// or s3:// address are copied to this machine.

    `config` is a config.json for weights that come without one. ValueError describes a fault of the path or its files.
    """
    path = pathlib.Path(local_copy(path))
    if not path.exists():  # a folder of one's own is never shadowed by an installed package
        path = packaged_folder(path) or path
    if (path / "checkpoints").is_dir():
        tuned = _fine_tuned(path)
        step, notes = best_step(path) if tuned else whole_step(path)
        if tuned and step in stored_losses(path):
            notes.append(f"step {step} is the best of the whole checkpoints of this fine-tuned run")
        return _from_checkpoint(path / "checkpoints" / str(step), notes)
    if path.name.isdigit() and (path / "state").is_dir():
        return _from_checkpoint(path, [])
    if is_weights(path):
        return with_generator(
            from_weights(path, read_folder(path, pathlib.Path(config) if config else None)), load_model
        )
    what = "holds none of them" if path.is_dir() else "does not exist"
    raise ValueError(
        f"{path} {what}: expected a run directory (with checkpoints/), a checkpoint (checkpoints/STEP), or a folder or file of "
        "PyTorch weights (model.safetensors, pytorch_model.bin, model.pt), or an installed model (`spanjax doctor` lists them)"
    )


def _fine_tuned(workdir: pathlib.Path) -> bool:
    metas = (stored_meta(workdir, step) for step in reversed(steps_of(workdir)))
    return any(isinstance(meta, Mapping) and described_task(meta, workdir) is not None for meta in metas)


def _from_checkpoint(folder: pathlib.Path, notes: list[str]) -> Model:
    step, params, meta = read_weights(folder)
    encoder = _stored_encoder(folder, meta)
    pair = next((name for name in PAIR_NAMES if name in params), meta.get("model", {}).get("pair", "nsp"))
    try:
        files = {name: base64.b64decode(content) for name, content in meta.get("vocabulary", {}).items()}
        vocabulary = vocabulary_from_files(files) if files else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder}: the vocabulary in its meta is damaged ({error}): take another step") from error
    task = described_task(meta, folder)
    objective = _stored_objective(meta, encoder, task)
    return Model(
        encoder=encoder,
        params=canonical(params),
        vocabulary=vocabulary,
        source=folder,
        step=step,
        pair=pair,
        meta=meta,
        notes=(*notes, *_average_lines(meta), *(() if objective else _own_lines(meta))),
        task=task,
        trained=objective if isinstance(objective, Pretraining) else None,
        pooling=_stored_pooling(meta, objective),
        model_type=str(meta.get("model", {}).get(MODEL_TYPE) or meta.get("run", {}).get(MODEL_TYPE) or ""),
    )


def _stored_pooling(meta: Mapping[str, Any], objective: Objective | None) -> TextPooling:
    """Returns the pooling of a run's task, or of converted weights."""
    if isinstance(objective, Task):
        return objective.text_pooling
    found = meta.get("model", {}).get("pooling")
    return found if found in get_args(TextPooling) else "mean"


def _stored_objective(
    meta: Mapping[str, Any], encoder: EncoderConfig, task: Mapping[str, Any] | None
) -> Objective | None:
    """Restores the objective that trained a checkpoint; None if the file does not name it, or it cannot be used here."""
    try:
        objective = restored(task or meta["run"]["objective"], Objective)
        return None if type_problems(objective) or objective.problems(encoder) else objective
    except (ValueError, TypeError, KeyError, AttributeError):  # also of a damaged file
        return None


def _average_lines(meta: Mapping[str, Any]) -> list[str]:
    """Returns a note if the weights of a run's checkpoint are a moving average."""
    run = meta.get("run")
    optimizer = run.get("optimizer") if isinstance(run, Mapping) else None
    decay = optimizer.get("ema_decay") if isinstance(optimizer, Mapping) else 0
    return [f"weights: the moving average that its run kept (optimizer.ema_decay {decay})"] if decay else []


def _own_lines(meta: Mapping[str, Any]) -> list[str]:
    """Describes the classes that a reader must be given to use the heads of a run, as text."""
    files = meta.get("own_classes")
    if not isinstance(files, Mapping) or not files:
        return []
    classes = ", ".join(f"{name} ({module})" for name, module in files.items())
    code = " ".join(dict.fromkeys(f"--code {module}" for module in files.values()))
    return [f"its run has classes that are not spanjax's: {classes}; to use heads of theirs give {code}"]


def _stored_encoder(folder: pathlib.Path, meta: Mapping[str, Any]) -> EncoderConfig:
    """Returns the encoder that a checkpoint's meta describes. ValueError if this version does not know all its settings."""
    written, own = f"it was written by spanjax {meta.get('spanjax', 'of another version')}", __version__
    found: Any = meta.get("model", {}).get("encoder") or meta.get("run", {}).get("encoder")
    if not isinstance(found, dict):
        raise ValueError(
            f"{folder}: its meta names no encoder: {written}, this is {own}; take the version that wrote it"
        )
    try:
        # the backend and what is recomputed were chosen for the run's devices
        encoder = restored(found, EncoderConfig).off_its_devices()
    except ValueError as error:
        raise ValueError(f"{folder}: {error} ({written}, this is {own})") from error
    problems = type_problems(encoder, "encoder.") or encoder.problems()
    if problems:
        raise ValueError(f"{folder}: its meta is damaged ({'; '.join(problems)}): take another step")
    return encoder


def from_weights(path: pathlib.Path, found: FolderContents) -> Model:
    """Builds the model of PyTorch weights that were read from `path`. ValueError if they are unknown or inconsistent."""
    notes: list[str] = []
    if found.config is None:
        family = family_of_names(found.tensors) or BERT
        tensors, notes = known_names(found.tensors, family)
        settings = guessed_config(tensors, found.recorded)
        heads = f"{settings['num_attention_heads']} heads"
        constants = "and constants from its args.config" if found.recorded else "of 64, BERT's constants"
        notes.append(f"no config.json: sizes from the weights, {heads} {constants}")
        encoder, family = config_from_hf(settings, f"the shapes{' and args.config' * bool(found.recorded)} of {path}")
    else:
        encoder, family = config_from_hf(found.config, str(found.files[-1]))
        tensors, notes = known_names(found.tensors, family)
    settings, task = found.config or {}, None
    parts: tuple[str, ...] = ()
    if family is DEBERTA:
        tensors, skipped = with_one_token_head(tensors, settings)
        notes += skipped
        parts = (POOLERS[settings.get("pooler_hidden_act", "gelu")],)
    try:
        kind = head_from_hf(settings, tensors, family)
        tensors, unused = without_left_over(tensors, family, kind)
        loaded = params_from_hf(tensors, encoder, with_heads(family, kind, parts))
        task = described_task_from_hf(settings, kind, loaded.params, encoder) if kind else None
        if problem := gelu_problem(encoder, loaded.params, family):
            raise ValueError(f"{problem}: read the encoder alone, as {family.class_prefix}Model saves it")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    _check_shapes(path, loaded.params, encoder)
    halves = sorted({str(array.dtype) for array in found.tensors.values()} - {"float32", "int64"})
    notes += [*found.notes, *unused, *([f"{', '.join(halves)} became float32"] if halves else [])]
    vocabulary = vocabulary_of_folder(path if path.is_dir() else path.parent)
    if vocabulary is not None:
        vocabulary = with_unused_ids(vocabulary, encoder.vocab_size)
        notes += [f"the last {vocabulary.unused:,} ids have no piece: unused"] * (vocabulary.unused > 0)
    # tokenizer files of another size belong to other weights: their ids would mean other tokens
    if vocabulary is not None and vocabulary.size != encoder.vocab_size:
        notes.append(f"the tokenizer files have {vocabulary.size:,} ids, the weights {encoder.vocab_size:,}: skipped")
        vocabulary = None
    pair = "sop" if family.model_type == "albert" else "nsp"
    pooling, unknown = pooling_of_folder(path)
    nearest = family_of(encoder, loaded.params).model_type
    return Model(
        encoder,
        loaded.params,
        vocabulary,
        path,
        pair=pair,
        notes=(*notes, *unknown),
        loaded=loaded,
        task=task,
        pooling=pooling,
        model_type="" if nearest == family.model_type else family.model_type,
    )


def _check_shapes(path: pathlib.Path, params: Mapping[str, Any], encoder: EncoderConfig) -> None:
    from spanjax.training.state import abstract_module

    model = Model(encoder, params, None, path)
    expected = named_leaves(canonical(abstract_module(model.objective(), encoder)[1]))
    leaves = named_leaves(params)
    wrong = [
        f"{name} is {leaves[name].shape}, config.json says {leaf.shape}"
        for name, leaf in expected.items()
        if name in leaves and leaves[name].shape != leaf.shape
    ]
    raise_problems(wrong[:8], f"{path}: weights and config.json do not agree:")
