"""python -m spanjax.train --config configs/pretrain/demo.py --workdir DIR: trains whatever Run the config file defines.

The same command resumes a run that was stopped or killed. Exit codes: 0 done, 2 a fault that a person must correct (wrong input,
a checkpoint that cannot be saved, numbers that are not finite), 3 some of the processes of the run are missing (they are named),
75 stopped by a signal after saving, or before the first step (3 and 75: run the same command again).

`main` catches signals from its first line on, so this module imports nothing that takes long.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import os
import pathlib
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, NoReturn

import tyro

from spanjax.cli import (
    PROCESSES_MISSING,
    STOPPED,
    WRONG_INPUT,
    StopSignals,
    end_with_launcher,
    open_standard_streams,
    parse_options,
    start_problem,
    stop_at_once,
    visible,
    visible_name,
)
from spanjax.storage.local import write_whole


def parse(arguments: list[str]) -> Any:
    """Parses the command line over the RUN of its --config file; tyro answers `--help` and misspelt settings."""
    # imported here, as it imports jax: `main` must catch signals before
    from spanjax.run import Preset, Run, named_run
    from spanjax.training.compilation_cache import CompilationCache

    base, path = named_run(arguments)

    @dataclasses.dataclass(frozen=True)
    class Train:
        """Trains the run that a config file defines; every setting of it can be overridden here."""

        run: Annotated[Run, tyro.conf.arg(name="")]
        config: str
        """File that defines RUN."""
        workdir: str = ""
        """Folder of checkpoints, metrics and the resolved run; the same command again resumes from it."""
        preset: Preset = ""
        """parity: attention dropout 0.1, as BERT and SpanBERT; fast: none, as fused attention kernels need.
        --encoder.attention-dropout overrides it."""
        dry_run: bool = False
        """Print mesh, parameters, memory, learning rate and a masked example, then exit."""
        compilation_cache: CompilationCache = True

    default = Train(run=base, config=path)
    marks = (tyro.conf.AvoidSubcommands,)
    return parse_options(
        Train, default=default, args=arguments, config=marks, prog="python -m spanjax.train", elsewhere=("tracking",)
    )


def opened(requested: Any, named: Collection[str] = ()) -> Any:
    """Opens the session of a run: of a task's examples, or of prepared rows.

    ValueError if a requested setting would not take effect; `named` are the settings that the command line names.
    """
    from spanjax.run import overridden
    from spanjax.tasks.base import Task

    if isinstance(requested.objective, Task):
        from spanjax.experiment.finetune import open_task_session as open_session
    else:
        from spanjax.experiment.pretrain import open_session
    session = open_session(requested)
    if problems := overridden(requested, session.run, named):
        raise ValueError("\n".join(problems))
    return session


def named_settings(arguments: Sequence[str]) -> set[str]:
    """Returns settings that a command line names, as in `spanjax.run.flat`: --encoder.hidden-size=8 is encoder/hidden_size."""
    words = (word[2:].partition("=")[0] for word in arguments if word.startswith("--"))
    return {word.replace("-", "_").replace(".", "/") for word in words}


def words_of(session: Any) -> Any:
    """Returns the module that describes such a session as text."""
    from spanjax.tasks.base import Task

    if isinstance(session.run.objective, Task):
        from spanjax.experiment import task_summary as words
    else:
        from spanjax.experiment import summary as words
    return words


def _description(session: Any) -> dict[str, Any]:
    from spanjax.run_format import describe, kind_of
    from spanjax.training.redaction import redacted

    described = describe(session.run)
    return redacted({"kind": kind_of(described), **described, **session.identity()})


def _meta(session: Any) -> dict[str, Any]:
    import jax

    from spanjax import __version__
    from spanjax.pretrained.model import stored_vocabulary

    device = session.mesh.devices.flat[0]
    return {
        "spanjax": __version__,
        "run": _description(session),
        **session.about(),
        "hardware": {
            "devices": f"{session.mesh.devices.size} x {device.device_kind}",
            "processes": jax.process_count(),
            "jax": jax.__version__,
        },
        "vocabulary": stored_vocabulary(session.vocabulary),
    }


def _writers(command: Any, session: Any, begin: int, meta: dict[str, Any], terminal: Any, resources: Any) -> tuple:
    """Opens (the writers of process 0, each closed with `resources`; the meta of checkpoints with the ids of trackers)."""
    from spanjax.training.metrics import JsonLines, Steady, TensorBoard
    from spanjax.training.trackers import Trackers

    workdir, writers = pathlib.Path(command.workdir), []

    def add(writer: Any) -> Any:
        resources.callback(writer.close)
        writers.append(writer)
        return writer

    add(Steady("metrics.jsonl", lambda last: JsonLines(workdir / "metrics.jsonl", last), begin))
    try:
        add(Steady("tensorboard", lambda last: TensorBoard(workdir / "tensorboard", last), begin))
    except ModuleNotFoundError:
        terminal.note("tensorboardX is not installed: metrics.jsonl holds the same numbers")
    run = session.run
    trackers = add(Trackers(run.tracking, workdir, begin, run.steps, meta["run"], terminal.note))
    return tuple(writers), {**meta, **trackers.meta()}


def _fit(
    command: Any, session: Any, checkpoints: Any, state: Any, terminal: Any, stop: Any, close: Callable[[], None]
) -> Any:
    """Runs the loop with every writer open, and closes them on every path; returns its `Outcome`.

    `close` closes the other resources of the process, before a stop request ends it inside the loop.
    """
    import jax

    from spanjax import distributed
    from spanjax.training.loop import Loop, fit
    from spanjax.training.nonfinite import Watch

    run, workdir, begin = session.run, pathlib.Path(command.workdir), int(state.step)
    with contextlib.ExitStack() as resources:
        with stop.leavable():
            writers, meta = (), _meta(session)
            if terminal:
                resources.callback(terminal.close)
                writers, meta = _writers(command, session, begin, meta, terminal, resources)

        def leave() -> None:
            resources.close()
            if terminal:
                terminal.note("stopped by a signal; saved. Run the same command to continue.")
            # `close` would otherwise finish a save by a rendezvous with processes that are ending too
            if jax.process_count() > 1:
                checkpoints.abandon()
            close()
            distributed.leave(STOPPED)
            end(STOPPED)

        loop = Loop(
            mesh=session.mesh,
            steps=run.steps,
            cadence=run.cadence,
            open_step=session.open_step,
            evaluate=session.evaluator(),
            judge=session.judge,
            open_feed=session.feed,
            statistics=session.statistics,
            flops=session.flops,
            check_data=session.check_data,
            checkpoints=checkpoints,
            meta=meta,
            writers=writers,
            terminal=terminal,
            profile=run.profile,
            profile_folder=str(workdir / "profile"),
            watch=Watch(run.guard, workdir if terminal else None, session.batch_rows),
        )
        stop.leave = leave
        return fit(loop, state, begin, stop)


def _claim(workdir: pathlib.Path, description: dict[str, Any], resources: contextlib.ExitStack) -> list[str]:
    """Locks the work directory until `resources` closes, and checks it, process 0 before the others; if one fails, all do.
    Returns the notes of `claim_workdir`."""
    import jax

    from spanjax.distributed import together
    from spanjax.run import claim_workdir, writing
    from spanjax.training.workdir import sole_run

    def claim(mine: bool) -> list[str]:
        if mine and jax.process_index() == 0:
            with writing(workdir):
                resources.enter_context(sole_run(workdir))
        return claim_workdir(workdir, description) if mine else []

    notes: list[str] = []
    for first in (True, False):
        notes += together("work directory", functools.partial(claim, (jax.process_index() == 0) == first))
    return notes


def _run(command: Any, session: Any, start: Any, notes: list[str], stop: Any, resources: contextlib.ExitStack) -> int:
    """Starts or resumes the run in its work directory; `notes` are printed first, `resources` closes at the end."""
    import jax

    from spanjax.training.checkpoint import Checkpoints
    from spanjax.training.metrics import Terminal

    workdir = pathlib.Path(command.workdir)
    terminal = Terminal(session.run.steps) if jax.process_index() == 0 else None
    if terminal:
        resources.callback(terminal.close)
        terminal.note("\n".join([f"attention by {session.attention}", *session.notes, *notes]))
    with Checkpoints(workdir, session.run.cadence.keep) as checkpoints:
        with stop.leavable():
            state = checkpoints.restore_newest(session.abstract)
            if state is None:
                state = session.fresh_state(start)
                if terminal and start:
                    terminal.note(
                        "\n".join(f"init-from {session.run.init_from}: {visible_name(line)}" for line in start.lines)
                    )
            elif terminal:
                terminal.note(f"continuing {workdir} from step {int(state.step):,}")
        # not before: a stop during the restore must not wait for it
        resources.push(checkpoints)
        outcome = _fit(command, session, checkpoints, state, terminal, stop, resources.close)
    if terminal and outcome.interrupted:
        terminal.note(f"stopped by a signal after step {outcome.step:,}; saved. Run the same command to continue.")
    elif terminal:
        lines = words_of(session).summary_lines(session, outcome, command.workdir)
        terminal.note("\n".join(["", *lines]))
        write_whole(workdir / "summary.json", json.dumps({"step": outcome.step, "eval": outcome.held_out}) + "\n")
    return STOPPED if outcome.interrupted else 0


def train(command: Any, named: Collection[str] = ()) -> int:
    """Runs one parsed command, whose line names these settings; returns the exit code."""
    from spanjax import distributed
    from spanjax.training.heap import keep_freed_blocks

    keep_freed_blocks()
    distributed.start()
    from spanjax.training.preemption import StopRequest

    with contextlib.ExitStack() as resources:

        def leave() -> None:
            resources.close()
            distributed.leave(STOPPED)
            stop_at_once(stop.signal)

        stop = StopRequest(leave)
        with stop:
            return _train(command, named, stop, resources)


def _train(command: Any, named: Collection[str], stop: Any, resources: contextlib.ExitStack) -> int:
    import jax

    from spanjax import distributed
    from spanjax.training.checkpoint_files import has_checkpoints
    from spanjax.training.compilation_cache import use_compilation_cache
    from spanjax.training.trackers import require

    with stop.leavable():
        use_compilation_cache(command.compilation_cache)
        session = distributed.together("rows and mesh", lambda: opened(command.run, named))
        workdir = pathlib.Path(command.workdir)
        begun = bool(command.workdir) and has_checkpoints(workdir)
        start = None if begun else session.start()
        if command.dry_run:
            lines = words_of(session).dry_run_lines(session)
            print(
                "\n".join([*lines, *(f"init-from   {visible_name(line)}" for line in (start.lines if start else ()))])
            )
            return 0
        if not command.workdir:
            raise ValueError("--workdir is not set: give a folder for checkpoints and metrics, or --dry-run")
        distributed.together("trackers", lambda: None if jax.process_index() else require(session.run.tracking))
        notes = _claim(workdir, _description(session), resources)
    return _run(command, session, start, notes, stop, resources)


def end(code: int) -> NoReturn:
    """Ends the process at once: all resources are closed, and the interpreter's own end takes seconds of a core."""
    if "jax" in sys.modules:
        with contextlib.suppress(Exception):  # several processes disconnect together, unless one is gone
            sys.modules["jax"].distributed.shutdown()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; user errors become one message on stderr and exit code 2."""
    open_standard_streams()
    with StopSignals(stop_at_once):
        end_with_launcher()
        return _main(arguments)


def _main(arguments: list[str] | None) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    from spanjax.distributed import ProcessesMissing, leave

    words = sys.argv[1:] if arguments is None else arguments
    try:
        return train(parse(words), named_settings(words))
    except Exception as error:
        if problem := start_problem(error):
            print(f"spanjax.train: {problem}", file=sys.stderr)
            return leave(WRONG_INPUT)
        from spanjax.json_files import JsonError
        from spanjax.training.checkpoint_files import CheckpointError
        from spanjax.training.nonfinite import NonFiniteError
        from spanjax.training.workdir import LockedError

        known = CheckpointError | JsonError | LockedError | NonFiniteError | ProcessesMissing
        if isinstance(error, OSError) and error.filename:  # of a file; without one it may be the network's
            error = ValueError(f"{error.strerror} ({error.filename})")
        if type(error) is not ValueError and not isinstance(error, known):
            leave(1, error)
            raise
        print(visible(f"spanjax.train: {error}"), file=sys.stderr)
        return leave(PROCESSES_MISSING if isinstance(error, ProcessesMissing) else WRONG_INPUT)


if __name__ == "__main__":
    end(main())
