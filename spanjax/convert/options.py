"""Options of `to-torch` and `to-onnx`, without jax for their help; `save_torch` and `save_onnx` fill them in."""

import dataclasses
from typing import Annotated, Literal

import tyro

from spanjax.cli import Code

GraphTask = Literal["auto", "encoder", "fill-mask", "classification", "question-answering"]


@dataclasses.dataclass(frozen=True)
class ToTorch:
    """Source, output and format of a conversion to PyTorch."""

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")]
    """A run directory (its newest whole checkpoint; of a fine-tuned run the best), one checkpoint, or a folder of weights."""
    output: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="OUTPUT")]
    """Folder to write; a failed conversion leaves nothing there."""
    format: Literal["hf", "hf-bin", "fairseq"] = "hf"
    """hf: model.safetensors. hf-bin: pytorch_model.bin. fairseq: model.pt with the original SpanBERT names, for BERT alone."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Type of the weights in the file."""
    verify: bool = False
    """Compare the folder with the source at once, by transformers if installed; exit code 1 above 1e-4."""
    overwrite: bool = False
    """Replace an existing folder."""
    name: str = ""
    """Name of the model in its card; by default the folder's."""
    license: str = ""
    """Licence of the weights, for the card: cc-by-sa-4.0, say."""
    language: str = ""
    """Language of the text, for the card: en, say."""
    base_model: str = ""
    """Name on the Hub of the model that training started from, for the card: SpanBERT/spanbert-base-cased, say."""
    sentence_transformers: bool = False
    """Add the files with which sentence_transformers.SentenceTransformer loads the folder and makes the vectors of `encode`."""
    code: Code = ()


@dataclasses.dataclass(frozen=True)
class ToOnnx:
    """Source, output and contents of an export to ONNX."""

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")]
    """A run directory (its newest whole checkpoint; of a fine-tuned run the best), one checkpoint, or a folder of weights."""
    output: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="OUTPUT")]
    """Folder to write; a failed export leaves nothing there."""
    task: GraphTask = "auto"
    """Outputs of the graph. encoder: last_hidden_state. fill-mask: logits of every token. classification: logits of rows or
    tokens. question-answering: start_logits and end_logits. auto: the head of the fine-tuning, else fill-mask, else encoder."""
    sbo: bool = False
    """Also compute sbo_logits, the span boundary head's scores of every [MASK] (with fill-mask)."""
    int8: bool = False
    """Also write model_int8.onnx, with the weights of products and tables in 8 bits, and print how far its outputs move."""
    verify: bool = False
    """Compare the graph in onnxruntime with spanjax at once; exit code 1 above 1e-4."""
    overwrite: bool = False
    """Replace an existing folder."""
    name: str = ""
    """Name of the model in its card; by default the folder's."""
    license: str = ""
    """Licence of the weights, for the card: cc-by-sa-4.0, say."""
    language: str = ""
    """Language of the text, for the card: en, say."""
    code: Code = ()
