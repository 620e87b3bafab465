"""Known traps of the stack as pure functions: facts about a machine in, one finding each out.

`spanjax.doctor` gathers the facts and prints the findings. Nothing in this file imports, reads or asks anything, so a
test can describe any broken machine.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

Status = Literal["ok", "note", "fail"]

REQUIRED = (
    *("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"),
    *("tyro", "tokenizers", "safetensors", "rich"),
)
FEEDS = ("numba",)
TENSORFLOW_FEED = ("tensorflow", "tensorflow-text", "tensorflow-datasets", "seqio")
SLOW_IMPORT_SECONDS = 60.0
GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Device:
    """One device as jax reports it; memory in bytes where the platform tells."""

    platform: str
    kind: str
    memory: int | None = None


@dataclasses.dataclass(frozen=True)
class Probe:
    """Result of a subprocess that imported something: its error (empty on success) and the seconds it took."""

    error: str = ""
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Facts:
    """Input of all checks; `versions` maps normalised names of installed distributions to their versions."""

    python: str
    system: str
    versions: Mapping[str, str]
    environment: Mapping[str, str]
    devices: tuple[Device, ...]
    jax_probe: Probe
    seqio_probe: Probe | None  # None: seqio is not installed
    jaxlib_required: str  # bounds of the installed jax, "<=0.10.2,>=0.10.1"
    sentencepiece_gencode: str  # protobuf version its messages were generated for, "" if unknown
    tensorflow_gpus: int
    nvidia_gpu: bool
    tpu_chips: int
    memory_total: int | None
    memory_available: int | None
    disk_free: int
    models: tuple[str, ...] = ()  # names of the models that packages bring, for spanjax.load
    start_up: str = ""  # what `spanjax.distributed` makes of the launcher's variables
    start_up_error: str = ""
    start_up_note: str = ""  # the coordinator's name leads to loopback
    private_missing: tuple[str, ...] = ()  # private names of jax that spanjax uses and the installed jax lacks


@dataclasses.dataclass(frozen=True)
class Finding:
    """Result of one check; a note is worth reading, a failure must be repaired."""

    name: str
    status: Status = "ok"
    message: str = ""


Result = Iterator[tuple[Status, str]]
"""Status and message of the problems of a check, the worst first: the first one counts. None if all is well."""


def release(version: str) -> tuple[int, ...]:
    """Numbers of a version's release part: "2.13.0+cpu" -> (2, 13), trailing zeros dropped so that 2.13 == 2.13.0."""
    match = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in match.group().split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _installed(facts: Facts) -> Result:
    """The packages spanjax cannot start without, and those of the TensorFlow feed."""
    missing = [name for name in REQUIRED if name not in facts.versions]
    if missing:
        yield "fail", f"missing {', '.join(missing)}: pip install -r requirements.txt"
    if lacking := [name for name in FEEDS if name not in facts.versions]:
        yield "note", f"without {', '.join(lacking)} models can be used but not trained: pip install 'spanjax[train]'"
        return
    absent = [name for name in TENSORFLOW_FEED if name not in facts.versions]
    if absent:
        yield "note", f"without {', '.join(absent)} only the NumPy feed works"


def _python(facts: Facts) -> Result:
    """Python 3.11 is the oldest that works, and gets no new jax."""
    if release(facts.python) < (3, 11):
        yield "fail", f"Python {facts.python} is too old: use 3.11 or newer"
    if release(facts.python)[:2] == (3, 11):
        yield "note", "Python 3.11 stays at jax 0.10.2 and flax 0.12.8; use 3.12 or newer for later ones"


def _jaxlib(facts: Facts) -> Result:
    """jaxlib must lie within the bounds that the installed jax names."""
    jaxlib = facts.versions.get("jaxlib", "")
    for sign, bound in re.findall(r"(<=|>=|==)\s*([\d.]+)", facts.jaxlib_required):
        ours, theirs = release(jaxlib), release(bound)
        if not {"<=": ours <= theirs, ">=": ours >= theirs, "==": ours == theirs}[sign]:
            jax = facts.versions.get("jax", "")
            remedy = f"pip install --upgrade jax=={jax} jaxlib=={jax}"
            yield "fail", f"jax {jax} needs jaxlib{facts.jaxlib_required}, found {jaxlib}: {remedy}"


def _cuda_plugin(facts: Facts) -> Result:
    """One CUDA plugin, of jaxlib's version, its parts alike, and nothing in front of the libraries of its wheels."""
    jaxlib = facts.versions.get("jaxlib", "")
    parts = {name: facts.versions[name] for name in facts.versions if re.fullmatch(r"jax-cuda\d+-(plugin|pjrt)", name)}
    lines = sorted({name.split("-")[1] for name in parts})
    if len(lines) > 1:
        yield "fail", f"both {' and '.join(lines)} plugins are installed: uninstall one"
    wrong = [f"{name} {version}" for name, version in sorted(parts.items()) if release(version) != release(jaxlib)]
    if wrong:
        remedy = f"pip install --upgrade 'jax[{lines[0]}]=={jaxlib}'"
        yield "fail", f"{', '.join(wrong)} beside jaxlib {jaxlib}: {remedy}"
    if parts and "cuda" in facts.environment.get("LD_LIBRARY_PATH", "").lower():
        yield "note", "LD_LIBRARY_PATH hides the CUDA libraries of the jax wheels: unset it"
    if facts.nvidia_gpu and not parts:
        yield "note", "an NVIDIA GPU that jax cannot use: pip install --upgrade 'jax[cuda13]'"


def _cudnn_mask(facts: Facts) -> Result:
    """Before jax 0.11 cuDNN's attention also computes the gradient of its mask, which nothing reads, in every layer."""
    jax = facts.versions.get("jax", "")
    if jax and facts.nvidia_gpu and release(jax) < (0, 11):
        remedy = "take Python 3.12 and jax 0.11 or later"
        yield "note", f"jax {jax} computes the gradient of cuDNN's mask and drops it, in every layer and step: {remedy}"


def _libtpu(facts: Facts) -> Result:
    """libtpu on a machine without TPU is tried first, at every start; TPU chips without libtpu stay idle."""
    chosen = facts.environment.get("JAX_PLATFORMS")
    if "libtpu" in facts.versions and not facts.tpu_chips and not chosen:
        yield "note", "libtpu is installed and there is no TPU: set JAX_PLATFORMS=cpu (or cuda), or uninstall libtpu"
    if facts.tpu_chips and "libtpu" not in facts.versions:
        yield "note", f"{facts.tpu_chips} TPU chips that jax cannot use: pip install 'jax[tpu]'"


def _devices(facts: Facts) -> Result:
    """jax starts and sees devices."""
    if facts.jax_probe.error:
        hint = "on a pod slice start it on every worker at once; a TPU or GPU held by another process looks the same"
        yield "fail", f"jax does not start: {facts.jax_probe.error} ({hint})"
    if not facts.devices:
        yield "fail", "jax sees no device: check JAX_PLATFORMS"


def _start_up(facts: Facts) -> Result:
    """The launcher's variables make sense, or `train` would refuse them, and other hosts can reach the coordinator's name."""
    if facts.start_up_error:
        yield "fail", facts.start_up_error
    if facts.start_up_note:
        yield "note", facts.start_up_note


def _private_jax(facts: Facts) -> Result:
    """jax has the private names that spanjax uses: a release may move them without notice."""
    if facts.private_missing:
        lost = f"jax {facts.versions.get('jax', '')} has no {', '.join(facts.private_missing)}"
        remedy = "take the jax that spanjax was tested with (0.10.2 on Python 3.11), or a newer spanjax"
        yield "fail", f"{lost}, which runs of several processes or plans for GPUs need: {remedy}"


def _memory_fraction(facts: Facts) -> Result:
    """The share of GPU memory jax takes has a new name, and jaxlib refuses both together."""
    old, new = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"
    if facts.environment.get(old) and facts.environment.get(new):
        yield "fail", f"jaxlib refuses {new} together with its old name: unset {old}"
    if facts.environment.get(old):
        yield "note", f"{old} is deprecated: set {new}"


def _tensorflow_text(facts: Facts) -> Result:
    """tensorflow-text 2.21.0 cannot be imported, and any version needs the TensorFlow it was built for."""
    text, tensorflow = facts.versions.get("tensorflow-text", ""), facts.versions.get("tensorflow", "")
    if text and release(text) == (2, 21):
        remedy = "pip install 'tensorflow-text>=2.21.1,<2.22'"
        yield "fail", f"2.21.0 cannot be imported (undefined symbol icudt77_dat): {remedy}"
    if text and tensorflow and text.split(".")[:2] != tensorflow.split(".")[:2]:
        remedy = f"pip install 'tensorflow-text=={'.'.join(tensorflow.split('.')[:2])}.*'"
        yield "fail", f"{text} beside tensorflow {tensorflow}: {remedy}"


def _protobuf(facts: Facts) -> Result:
    """sentencepiece 0.2.3 refuses a protobuf older than the one its messages were generated for; Beam forces one."""
    protobuf, wanted = facts.versions.get("protobuf", ""), facts.sentencepiece_gencode
    if "sentencepiece" in facts.versions and protobuf and wanted and release(protobuf) < release(wanted):
        problem = (
            f"sentencepiece {facts.versions['sentencepiece']} was generated for protobuf {wanted}, found {protobuf}"
        )
        held_back = "apache-beam holds it back: pip install 'sentencepiece<0.2.3'"
        remedy = held_back if "apache-beam" in facts.versions else f"pip install 'protobuf>={wanted}'"
        yield "fail", f"{problem}: {remedy}"


def _seqio(facts: Facts) -> Result:
    """seqio, which imports TensorFlow, can be imported in acceptable time."""
    probe = facts.seqio_probe or Probe()
    if probe.error:
        yield "fail", f"does not import: {probe.error}"
    if probe.seconds > SLOW_IMPORT_SECONDS:
        yield "note", f"its import took {probe.seconds:.0f} s: keep the environment on a local disk"


def _tensorflow_gpu(facts: Facts) -> Result:
    """TensorFlow takes the whole memory of every GPU it sees; spanjax hides them from it, other code must too."""
    if facts.tensorflow_gpus:
        remedy = "spanjax's feed hides them; your own code calls tf.config.set_visible_devices([], 'GPU') first"
        yield "note", f"TensorFlow sees {facts.tensorflow_gpus} GPUs: {remedy}"


def _transformers(facts: Facts) -> Result:
    """transformers 5 dropped its Flax models."""
    version = facts.versions.get("transformers", "")
    if release(version) >= (5,):
        yield "note", f"{version} has no Flax models; spanjax converts without them"


def _coval(facts: Facts) -> Result:
    """The package index's coval is not the coreference scorer."""
    if "coval" in facts.versions:
        remedy = "spanjax.scoring has the official metrics; pip uninstall coval"
        yield "note", f"this package is not the coreference scorer: {remedy}"


def _torch(facts: Facts) -> Result:
    """torch with CUDA packages on a machine without a GPU only wastes disk."""
    cuda = [name for name in facts.versions if re.match(r"nvidia-(cublas|cudnn|cuda-runtime)", name)]
    ours = any(name.startswith("jax-cuda") for name in facts.versions)
    if "torch" in facts.versions and cuda and not facts.nvidia_gpu and not ours:
        yield "note", "CUDA packages (gigabytes) and no GPU: install torch's CPU build instead"


def _disk(facts: Facts) -> Result:
    """Checkpoints need room: one of a base encoder is 1.3 GB (float32 weights and two moments)."""
    if facts.disk_free < GIB:
        yield "fail", f"{facts.disk_free / GIB:.2f} GiB free here: a checkpoint will not fit"
    if facts.disk_free < 10 * GIB:
        yield "note", f"{facts.disk_free / GIB:.1f} GiB free here: few checkpoints will fit"


CHECKS: Mapping[str, Callable[[Facts], Result]] = {
    "installed": _installed,
    "python": _python,
    "jaxlib": _jaxlib,
    "cuda plugin": _cuda_plugin,
    "cudnn mask": _cudnn_mask,
    "libtpu": _libtpu,
    "devices": _devices,
    "start-up": _start_up,
    "private jax": _private_jax,
    "memory fraction": _memory_fraction,
    "tensorflow-text": _tensorflow_text,
    "protobuf": _protobuf,
    "seqio": _seqio,
    "tensorflow gpu": _tensorflow_gpu,
    "transformers": _transformers,
    "coval": _coval,
    "torch": _torch,
    "disk": _disk,
}


def diagnose(facts: Facts) -> list[Finding]:
    """One finding per known trap, in a fixed order."""
    fine: tuple[Status, str] = ("ok", "")
    return [Finding(name, *next(check(facts), fine)) for name, check in CHECKS.items()]


def check_expected(facts: Facts, devices: int | None, platform: str | None) -> list[Finding]:
    """Findings on what the caller expects of jax's devices; nothing for an expectation that is None."""
    findings = []
    seen = sorted({device.platform for device in facts.devices})
    if devices is not None:
        wrong = len(facts.devices) != devices
        message = f"expected {devices} devices, jax sees {len(facts.devices)}" if wrong else ""
        findings.append(Finding("expected devices", "fail" if wrong else "ok", message))
    if platform is not None:
        wrong = seen != [platform]
        message = f"expected platform {platform}, jax sees {', '.join(seen) or 'none'}" if wrong else ""
        findings.append(Finding("expected platform", "fail" if wrong else "ok", message))
    return findings
