"""Start-up on one or many processes, and their rendezvous. Importing this does not import jax."""

from spanjax.distributed.barriers import (
    any_process,
    ask,
    asked,
    barrier,
    coordinator_gone,
    gather,
    leave,
    marks,
    name_of,
    preempted,
    put_mark,
    together,
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
    "gather",
    "leave",
    "marks",
    "name_of",
    "preempted",
    "put_mark",
    "start",
    "together",
    "tpu_chips",
]
