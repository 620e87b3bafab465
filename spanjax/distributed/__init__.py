"""Start-up on one or many processes, and their rendezvous. Importing this does not import jax."""

from spanjax.distributed.barriers import (
    abort_process,
    all_gather_text,
    any_process,
    ask,
    asked,
    barrier,
    collective_call,
    coordinator_gone,
    marks,
    name_of,
    preempted,
    put_mark,
)
from spanjax.distributed.launch import Launch, detect
from spanjax.distributed.meeting import ProcessesMissing
from spanjax.distributed.startup import device_problems, start, tpu_chips

__all__ = [
    "Launch",
    "ProcessesMissing",
    "any_process",
    "ask",
    "asked",
    "barrier",
    "coordinator_gone",
    "detect",
    "device_problems",
    "all_gather_text",
    "abort_process",
    "marks",
    "name_of",
    "preempted",
    "put_mark",
    "start",
    "collective_call",
    "tpu_chips",
]
