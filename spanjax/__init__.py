"""spanjax: pretraining and fine-tuning of span-based text encoders (SpanBERT) in JAX and Flax.

    import spanjax

    model = spanjax.load("runs/mine")                        # a run, a checkpoint, a Hugging Face folder
    model.encode(["a text", "another"])                      # vectors, [2, D]
    model.fill_mask("The [MASK] sat.")
    spanjax.load_task("runs/squad2").predict(question="Who sat?", context="The cat sat.")
    spanjax.fit(spanjax.Run(...), workdir="runs/mine")

The names of `__all__` are public: docs/python.md documents them and says what stays stable. They are imported at first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spanjax.api import FitResult, TaskPredictor, TextModel, fit, load, load_task
    from spanjax.inference.encode import TokenVectors
    from spanjax.inference.fill_mask import Fill, Masked, Span
    from spanjax.nn.config import EncoderConfig
    from spanjax.run import Data, Run

__version__ = "0.2.0"
__all__ = [
    "Data",
    "EncoderConfig",
    "Fill",
    "FitResult",
    "Masked",
    "Run",
    "Span",
    "TaskPredictor",
    "TextModel",
    "TokenVectors",
    "__version__",
    "fit",
    "load",
    "load_task",
]

_SOURCES = {
    "spanjax.api": ("FitResult", "TaskPredictor", "TextModel", "fit", "load", "load_task"),
    "spanjax.inference.encode": ("TokenVectors",),
    "spanjax.inference.fill_mask": ("Fill", "Masked", "Span"),
    "spanjax.nn.config": ("EncoderConfig",),
    "spanjax.run": ("Data", "Run"),
}
"""Module -> its public names. Imported here, these would load jax with every `import spanjax`."""


def __getattr__(name: str) -> Any:
    source = next((module for module, names in _SOURCES.items() if name in names), None)
    if source is None:
        raise AttributeError(f"module 'spanjax' has no attribute {name!r}: its public names are {', '.join(__all__)}")
    value = globals()[name] = getattr(importlib.import_module(source), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
