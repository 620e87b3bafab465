"""python -m spanjax.train --config configs/pretrain/demo.py --workdir DIR: trains whatever Run the config file defines.

The same command resumes a run that was stopped or killed. Exit codes: 0 done, 2 a fault that a person must correct (wrong input,
a checkpoint that cannot be saved, numbers that are not finite), 3 some of the processes of the run are missing (they are named),
4 some runs of a --sweep failed and the others are finished,
75 stopped by a signal after saving, or before the first step (3 and 75: run the same command again).

`main` catches signals from its first line on, so this module imports nothing that takes long.
"""

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import tyro

from spanjax.cli import (
    PROCESSES_MISSING,
    STOPPED,
    WRONG_INPUT,
    StopSignals,
    end_with_launcher,
    missing_package,
    open_standard_streams,
    parse_options,
    start_problem,
    stop_at_once,
    visible,
    visible_name,
)
from spanjax.storage.local import write_whole
from spanjax.storage.shipped import preset_table

if TYPE_CHECKING:
    from spanjax.run import Run
    from spanjax.training.loop import Session
    from spanjax.training.metrics import Terminal
    from spanjax.training.mirror import Mirror
    from spanjax.training.preemption import StopRequest


def parse(arguments: list[str], start: "Run | None" = None) -> Any:
    """Parses the command line over `start`, or the RUN of its --config file; tyro answers `--help` and misspelt settings."""
    # imported here, as it imports jax: `main` must catch signals before
    from spanjax.run import STORES, Preset, Run, named_run
    from spanjax.training.compilation_cache import CompilationCache

    if not arguments:
        raise ValueError(
            "no --config: give a preset (`--list` prints them) or a file that defines RUN, --rows FOLDER, written by `python -m"
            " spanjax.prepare`, and --workdir FOLDER; --help lists all settings"
        )
    base, path = named_run(arguments, start)

    @dataclasses.dataclass(frozen=True)
    class Train:
        """Trains the run that a config file defines; every setting of it can be overridden here."""

        run: Annotated[Run, tyro.conf.arg(name="")]
        config: Annotated[str, tyro.conf.arg(metavar="NAME|FILE")]
        """A preset, such as spanbert_base, or a file that defines RUN."""
        list: bool = False
        """Print the presets, then exit."""
        workdir: Annotated[str, tyro.conf.arg(metavar="FOLDER")] = ""
        """Folder of checkpoints, metrics and the resolved run; the same command again resumes from it."""
        preset: Preset = ""
        """parity: attention dropout 0.1, as BERT and SpanBERT; fast: none, as fused attention kernels need.
        --encoder.attention-dropout overrides it."""
        dry_run: bool = False
        """Print mesh, parameters, memory, learning rate and a masked example, then exit."""
        sweep: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
        """Grid of arms and seeds, in TOML or Python: trains each in WORKDIR/ARM/SEED, and skips those that are finished."""
        compilation_cache: CompilationCache = True

    default = Train(run=base, config=path)
    marks = (tyro.conf.AvoidSubcommands,)
    return parse_options(
        Train,
        default=default,
        args=arguments,
        config=marks,
        prog="python -m spanjax.train",
        description=f"{Train.__doc__}\n\n{common_settings(base)}",
        elsewhere=("tracking",),
        stores=("workdir", *STORES),
    )


def common_settings(run: Any) -> str:
    """Describes the ten settings that most runs change, with the values of `run`, to stand first in the help."""
    from spanjax.tasks.base import Task  # imports jax

    task, intervals = isinstance(run.objective, Task), run.cadence
    data = ("--train FILE, --dev FILE", "examples") if task else ("--rows FOLDER", "what spanjax.prepare wrote")
    derived = {-1: "derived", "": "none"}  # AUTO of `training.loop`, which a run replaces
    values = (intervals.log_every, intervals.eval_every, intervals.checkpoint_every)
    rows: list[tuple[Any, ...]] = [
        ("--config NAME|FILE", "a preset (--list prints them), or a file that defines RUN"),
        data,
        ("--workdir FOLDER", "checkpoints and metrics; the same command again resumes"),
        ("--init-from FOLDER", "weights to start from", run.init_from),
        ("--steps INT", "updates", run.steps),
        ("--batch-size INT", "rows of an update, over all devices", run.batch_size),
        ("--optimizer.learning-rate FLOAT", "peak learning rate", run.optimizer.learning_rate),
        ("--compute-dtype TYPE", "float32 or bfloat16", run.compute_dtype),
        ("--seed INT", "weights, order, masks and dropout", run.seed),
        (
            "--cadence.NAME INT",
            "log-every, eval-every, checkpoint-every",
            ", ".join(str(derived.get(n, n)) for n in values),
        ),
    ]
    lines = [f"  {flag:33s}{what}" + "".join(f" ({derived.get(n, n)})" for n in value) for flag, what, *value in rows]
    return "\n".join(["The settings that most runs change:", *lines, "", "Every setting:"])


def named_settings(arguments: Sequence[str]) -> set[str]:
    """Returns settings that a command line names, as in `spanjax.run.flat`: --encoder.hidden-size=8 is encoder/hidden_size."""
    words = (word[2:].partition("=")[0] for word in arguments if word.startswith("--"))
    return {word.replace("-", "_").replace(".", "/") for word in words}


def train(command: Any, named: Collection[str] = (), ends_process: bool = True) -> int:
    """Starts or resumes the run of a parsed command, whose line names these settings; returns the exit code.

    Raises the errors that `main` reports. Everything opened is closed on every path. A stop request outside of the loop ends the
    process at once with `ends_process`; else it waits for the next step.
    """
    from spanjax import distributed
    from spanjax.training.heap import keep_freed_blocks

    keep_freed_blocks()
    distributed.start()
    from spanjax.training.preemption import StopRequest

    def leave() -> None:
        resources.close()
        distributed.abort_process(STOPPED)
        stop_at_once(stop.signal)

    with contextlib.ExitStack() as resources, StopRequest(leave if ends_process else None) as stop:
        with stop.leavable():
            # long imports: a stop request of any process ends all of them here
            import jax

            from spanjax.experiment.branch import Branch
            from spanjax.experiment.session import description, open_session
            from spanjax.run_format import located
            from spanjax.training.compilation_cache import use_compilation_cache
            from spanjax.training.metrics import Terminal
            from spanjax.training.trackers import require
            from spanjax.training.workdir import find_workdir, open_workdir, stored_start

            use_compilation_cache(command.compilation_cache)
            workdir, mirror, begun = find_workdir(command.workdir, command.run.data.cache)
            # resumed from another folder: a relative path is still that of the first start
            start = stored_start(workdir) if command.workdir else None
            run = command.run if start is None else located(command.run, start, workdir)
            terminal = resources.enter_context(contextlib.closing(Terminal()))
            with terminal.phase("opening the data", "opened the data"):
                session = distributed.collective_call(
                    "rows and mesh", lambda: open_session(run, named, workdir if begun else None)
                )
            with terminal.phase("loading the initial weights", "loaded the initial weights"):
                weights = None if begun else session.initial_weights()
            if command.dry_run:
                loaded = weights.lines if weights else ()
                print("\n".join([*session.dry_run_lines(), *(f"init-from   {visible_name(line)}" for line in loaded)]))
                return 0
            if not command.workdir:
                raise ValueError("--workdir is not set: give a folder for checkpoints and metrics, or --dry-run")
            distributed.collective_call(
                "trackers", lambda: None if jax.process_index() else require(session.run.tracking)
            )
            stored = open_workdir(workdir, description(session), resources, mirror)
            if isinstance(weights, Branch):
                distributed.collective_call("branch", lambda: weights.copy_into(workdir, mirror))
        notes = [*session.notes, *session.resume_notes(command.workdir, stored)]
        return train_session(session, weights, workdir, notes, terminal, stop, resources, mirror)


def sweep(words: list[str]) -> int | None:
    """Runs the grid that --sweep names, see `experiment.sweep`; returns the exit code, None if the command has no grid."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--sweep", "--workdir", "--seed"):
        parser.add_argument(flag)
    parser.add_argument("--dry-run", "--dry_run", action="store_true")
    parser.add_argument("--help", "-h", action="store_true")
    options = parser.parse_known_args(words)[0]
    if not options.sweep or options.help:
        return None
    if options.seed or not options.workdir:
        problem = "the grid names the seeds, so leave --seed away" if options.seed else "it needs --workdir FOLDER"
        raise ValueError(f"--sweep {options.sweep}: {problem}")
    from spanjax import distributed
    from spanjax.training.heap import keep_freed_blocks

    keep_freed_blocks()
    distributed.start()  # before anything asks jax for its devices
    from spanjax.experiment.grid import read_grid
    from spanjax.experiment.sweep import Commands, run_sweep
    from spanjax.experiment.sweep_folder import SweepFolder

    commands = Commands(parse, named_settings, train, explain)
    return run_sweep(read_grid(options.sweep), words, SweepFolder(options.workdir), commands, options.dry_run)


def train_session(
    session: "Session",
    weights: Any,
    workdir: pathlib.Path,
    notes: list[str],
    terminal: "Terminal",
    stop: "StopRequest",
    resources: contextlib.ExitStack,
    mirror: "Mirror | None" = None,
) -> int:
    """Trains in an open work directory, from its newest checkpoint or from `weights`; returns the exit code.

    `notes` are printed first. `mirror` connects `workdir` with a bucket. What is opened here is closed with `resources`.
    """
    import jax

    from spanjax import distributed
    from spanjax.experiment.session import open_outputs
    from spanjax.training.checkpoint import Checkpoints
    from spanjax.training.loop import fit

    name = mirror.place if mirror else workdir
    terminal.steps = session.run.steps
    terminal.note("\n".join(notes))
    with contextlib.ExitStack() as saving:
        with stop.leavable():
            checkpoints = saving.enter_context(Checkpoints(workdir, session.run.cadence.keep, mirror))
            with terminal.phase("restoring the checkpoint", "restored the checkpoint"):
                state = checkpoints.restore_newest(session.abstract)
            if state is not None:
                terminal.note(f"continuing {name} from step {int(state.step):,}")
            else:
                state = session.fresh_state(weights)
                for line in weights.lines if weights else ():
                    terminal.note(f"init-from {session.run.init_from}: {visible_name(line)}")
        # not before: a stop during the restore must not wait for it
        resources.push(checkpoints)
        with resources.enter_context(contextlib.ExitStack()) as writing:
            with stop.leavable():
                outputs = open_outputs(session, workdir, checkpoints, int(state.step), terminal, writing)

            def leave() -> None:
                # `close` would otherwise finish a save by a rendezvous with processes that are ending too
                if jax.process_count() > 1:
                    checkpoints.abandon()
                resources.close()
                terminal.note("stopped by a signal; saved. Run the same command to continue.")
                distributed.abort_process(STOPPED)
                end(STOPPED)

            stop.leave = leave if stop.leave else None
            outcome = fit(session, state, outputs, stop)
    terminal.close()  # the summary stands below the bar
    if outcome.interrupted:
        terminal.note(f"stopped by a signal after step {outcome.step:,}; saved. Run the same command to continue.")
        return STOPPED
    if jax.process_index() == 0:
        terminal.note("\n".join(["", *session.summary_lines(outcome, str(name))]))
        write_whole(workdir / "summary.json", json.dumps({"step": outcome.step, "eval": outcome.held_out}) + "\n")
    return 0


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
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
        from spanjax.distributed import abort_process

        words = sys.argv[1:] if arguments is None else arguments
        if "--list" in words:
            print(preset_table())
            return 0
        try:
            code = sweep(words)
            return train(parse(words), named_settings(words)) if code is None else code
        except Exception as error:
            message, code = explain(error)
            if message is None:
                abort_process(code, error)
                raise
            print(visible(f"spanjax.train: {message}"), file=sys.stderr)
            return abort_process(code)


def explain(error: Exception) -> tuple[str | None, int]:
    """Returns (message for the user, exit code); None for an error that only its traceback explains."""
    if problem := missing_package(error) or start_problem(error):
        return problem, WRONG_INPUT
    from spanjax.distributed import ProcessesMissing
    from spanjax.json_files import JsonError
    from spanjax.storage.objects import StorageError
    from spanjax.training.checkpoint_files import CheckpointError
    from spanjax.training.nonfinite import NonFiniteError
    from spanjax.training.workdir import LockedError

    if isinstance(error, OSError) and error.filename:  # of a file; without one it may be the network's
        return f"{error.strerror} ({error.filename})", WRONG_INPUT
    if isinstance(error, ProcessesMissing):
        return str(error), PROCESSES_MISSING
    # a ValueError of ours: jax and NumPy raise subclasses and others, which are faults of the program
    known = type(error) is ValueError or isinstance(
        error, CheckpointError | JsonError | LockedError | NonFiniteError | StorageError
    )
    return (str(error), WRONG_INPUT) if known else (None, 1)


if __name__ == "__main__":
    end(main())
