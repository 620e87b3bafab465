"""What the sections of `benchmarks.gpu` are made of: sizes, time left, the report, rows, and the step of spanjax.

Shapes: M blocks, B rows, K slots, P pairs.
"""

import dataclasses
import itertools
import json
import pathlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.made import one_device_session, packed_rows
from spanjax.hardware import CHIPS, Chip
from spanjax.plan.cost import CostModel
from spanjax.plan.hlo import Program

SECTIONS = ("preflight", "ceilings", "base", "large", "feed", "mix", "extra", "sweep")
"""In the order in which they run: the most valuable figures first, the sweep last."""
MEAN_OF_PAPER, MEAN_OF_MLPERF = 336, 254.5  # tokens a block: SpanBERT's data (section 1.2), MLPerf's Wikipedia
FULLEST = 20  # full blocks that are taken of a document
MOST_BLOCKS = 5  # of a packed row: such rows need no more slots than a full one


@dataclasses.dataclass(frozen=True)
class Size:
    """A model, by its usual name."""

    name: str
    layers: int
    width: int
    rows: int
    """Of a batch on one device."""

    def encoder(self, **settings: Any) -> Any:
        """The encoder of spanjax; hidden dropout 0.1, attention dropout 0, attention by what is best, unless set."""
        from spanjax.nn.config import EncoderConfig

        sizes = {"heads": max(1, self.width // 64), "intermediate_size": 4 * self.width}
        chosen = {"dropout": 0.1, "attention_dropout": 0.0, **sizes, **settings}
        return EncoderConfig(hidden_size=self.width, layers=self.layers, **chosen)


@dataclasses.dataclass(frozen=True)
class Scale:
    """How large everything is."""

    sizes: tuple[Size, ...]
    length: int
    vocabulary: int
    steps: int
    """Of one repeat."""
    matmul: int
    copied: int
    """Bytes."""
    pace: float
    """First guesses of durations, as a multiple of those for an H200."""
    rows: tuple[int, ...]
    """Batch sizes of the sweep."""


FULL = Scale((Size("base", 12, 768, 64), Size("large", 24, 1024, 32)), 512, 28_996, 6, 8192, 2**31, 1.0, (16, 32, 96))
TINY = Scale((Size("base", 2, 64, 4), Size("large", 3, 64, 4)), 64, 200, 1, 256, 2**20, 0.05, (2,))


class Budget:
    """Seconds left. The duration of a piece of work is guessed for an H200, and corrected by those measured so far."""

    def __init__(self, seconds: float, pace: float):
        self.started, self.seconds, self.pace = time.perf_counter(), seconds, pace
        self.guessed: dict[str, float] = {}
        self.took: dict[str, float] = {}

    def left(self) -> float:
        """Seconds until nothing more may begin."""
        return self.seconds - (time.perf_counter() - self.started)

    def needs(self, kind: str, guess: float) -> float:
        """Seconds that work of this kind is now thought to take."""
        return guess * (self.took[kind] / self.guessed[kind] if kind in self.took else self.pace)

    def learn(self, kind: str, guess: float, took: float) -> None:
        """Notes how long such work took."""
        self.guessed[kind] = self.guessed.get(kind, 0.0) + guess
        self.took[kind] = self.took.get(kind, 0.0) + took


class Report:
    """Rows of figures, printed as they come and written to the file after each: a run that is killed keeps them."""

    def __init__(self, file: pathlib.Path | None, settings: Mapping[str, Any]):
        self.file, self.settings = file, dict(settings)
        self.sections: dict[str, dict[str, Any]] = {name: {"status": "not measured", "rows": []} for name in SECTIONS}
        self.values: dict[str, float] = {}
        """Figures that targets are set for, by name."""
        self.running = ""
        """Section that runs now."""
        self.machine = timing.machine()

    def row(self, section: str, name: str, figures: Mapping[str, Any] | None, note: str = "") -> None:
        """One row: its figures, or None and the reason why there are none."""
        self.sections[section]["rows"].append(
            {"name": name, "measured": figures is not None, "note": note, **(figures or {})}
        )
        shown = "   ".join(shown_figure(key, value) for key, value in (figures or {}).items() if value is not None)
        print(f"{section:9s} {name:44s} {shown or 'NOT MEASURED'}{'   ' if note else ''}{note}", flush=True)
        self.save()

    def begin(self, section: str) -> None:
        """Notes that a section begins."""
        self.running = section
        self.sections[section]["status"] = "running"
        self.save()

    def close(self, section: str, seconds: float) -> None:
        """Notes that a section is over."""
        found = [row["measured"] for row in self.sections[section]["rows"]]
        status = "measured" if found and all(found) else "measured in part" if any(found) else "not measured"
        self.sections[section] |= {"status": status, "seconds": seconds}
        self.save()

    def figures(self) -> dict[str, Any]:
        """Everything, as it is written."""
        return {"settings": self.settings, "sections": self.sections, "values": self.values}

    def save(self) -> None:
        """Writes what there is so far."""
        if self.file:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            content = {"machine": self.machine, "figures": self.figures(), "targets": []}
            temporary = self.file.with_name(f".{self.file.name}")
            temporary.write_text(json.dumps(content, indent=1, default=float) + "\n")
            temporary.replace(self.file)


def shown_figure(key: str, value: Any) -> str:
    """A figure as it stands in the table: name and value, a median with its spread."""
    name = key.replace("_per_s", "/s").replace("_", " ")
    if isinstance(value, Mapping):
        return f"{name} {value['median']:,.6g} ({value['lowest']:,.6g} to {value['highest']:,.6g})"
    return f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value}"


def block_lengths(count: int, mean: float, length: int) -> np.ndarray:
    """Text tokens of blocks [M] whose mean with [CLS] and [SEP] is about `mean` of 512: documents cut at the row's length.

    Documents are log-normal (sigma 1.1), and their median is what gives the mean.
    """
    draws, limit = np.random.default_rng(0).standard_normal(4 * count), length - 2

    def blocks(median: float) -> np.ndarray:
        sizes = np.clip(length * median * np.exp(1.1 * draws), 8, FULLEST * limit).astype(np.int64)
        rest = sizes % limit
        return np.concatenate([np.full(int((sizes // limit).sum()), limit), rest[rest > 1]])

    low, high = 0.01, 20.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if blocks(middle).mean() + 2 < mean * length / 512 else (low, middle)
    return np.random.default_rng(1).permutation(blocks(low))[:count]


def write_blocks(folder: pathlib.Path, sizes_M: np.ndarray, scale: Scale, pack: bool) -> Any:
    """Rows of blocks of so many tokens with Zipf's frequencies, as `prepare --max-blocks 5` packs or one block a row; opened."""
    return packed_rows(folder, sizes_M, scale.vocabulary, scale.length, MOST_BLOCKS if pack else 1)


def fitted(batch: Mapping[str, Any], slots: int) -> dict[str, np.ndarray]:
    """A batch with `slots` slots and one pair a row, so that every batch runs in the same program."""
    assert not np.asarray(batch["pair_weight_BP"]).any() and batch["slot_weight_BK"].shape[1] <= slots
    found = {}
    for name, array in batch.items():
        if name.endswith("_BK"):
            array = np.pad(array, ((0, 0), (0, slots - array.shape[1])))
        found[name] = array[:, :1] if name.endswith("_BP") else array
    return found


def chip_of(kind: str) -> Chip | None:
    """Figures of a device that jax calls by this name; None for an unknown one."""
    return CHIPS["h200"] if kind.startswith("NVIDIA H200") else None


class Refused(Exception):
    """spanjax says that these settings cannot run on this device."""


class Holder:
    """The state that all steps of one size share, so that it is made once. A step that fails loses it."""

    def __init__(self) -> None:
        self.state: Any = None

    def take(self, session: Any) -> Any:
        """The state, which is the caller's until it is put back; fresh where there is none."""
        state, self.state = self.state, None
        return session.fresh_state() if state is None else state


class Ours:
    """spanjax's step on one device."""

    def __init__(self, encoder: Any, rows: Any, batch_size: int, holder: Holder, dtype: str = "bfloat16"):
        from spanjax.run import Data

        settings = {"data": Data(feed="numpy"), "batch_size": batch_size, "compute_dtype": dtype}
        try:
            self.session = one_device_session(encoder, rows, **settings)
        except ValueError as error:
            raise Refused(f"refused: {error}") from None
        self.holder, self.compiled, self.about, self.rows = holder, None, {}, batch_size
        self.model: CostModel | None = None
        self.seed: Any = None
        self.measured = self.session.builder.eval_step()

    def compile(self, batch: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> None:
        """Compiles the step for batches of these shapes, once; `about` then has its costs, `model` its kernels.

        `options` are XLA's flags for this program alone.
        """
        if self.compiled is not None:
            return
        session, begin = self.session, time.perf_counter()
        step = session.train_step()
        lowered = step.lower(session.abstract, batch)
        self.compiled, self.seed = lowered.compile(compiler_options=dict(options or {}) or None), step.seed
        memory = self.compiled.memory_analysis()
        self.about = {
            "compile_s": time.perf_counter() - begin,
            "temp_gib": getattr(memory, "temp_size_in_bytes", 0) / 2**30,
        }
        chip = chip_of(session.mesh.devices.flat[0].device_kind)
        if chip is not None:
            self.model = CostModel(Program(self.compiled.as_text()), chip.achievable)
            self.about["modelled_ms"] = 1000 * self.model.seconds

    def steps(self, batches: Iterable[Any]) -> None:
        """One update a batch, finished. FloatingPointError where a loss came out as no number."""
        import jax

        assert self.compiled is not None
        state, shown = self.holder.take(self.session), None
        for batch in batches:
            state, shown = self.compiled(state, batch, self.seed)
        assert shown is not None
        losses = {name: mean.value() for name, mean in jax.device_get(shown["means"]).items()}
        if not np.isfinite(list(losses.values())).all():
            raise FloatingPointError(f"losses are {losses}")
        self.holder.state = jax.block_until_ready(state)

    def repeated(self, batch: Any, count: int) -> None:
        """`count` updates on the same batch."""
        self.steps(itertools.repeat(batch, count))

    def params(self) -> Any:
        """The master weights of now, on the host."""
        import jax

        self.holder.state = self.holder.take(self.session)
        return jax.device_get(self.holder.state.params)

    def means(self, params: Any, batch: Mapping[str, Any]) -> dict[str, float]:
        """Both losses without dropout."""
        found = self.measured(params, dict(batch))
        return {name: found[f"{name}/loss"].value() for name in ("mlm", "sbo")}


def summary(seconds: Sequence[float], work: float) -> dict[str, float]:
    """Units a second: median, lowest and highest."""
    return timing.rates({"": work}, {"": seconds})[""]
