"""Draws the losses of a pretraining run over its steps, in training and held out.

    python docs/figures/learning_curve.py runs/mini/run models/spanbert_mini/curve.svg

Grey axes on a transparent ground, so that one file serves light and dark pages.
"""

import json
import pathlib
import sys

import matplotlib.pyplot as plt
import numpy as np

COLOURS = {"mlm": "#c2660a", "sbo": "#2f7fd6"}
GREY, SMOOTH = "#848d97", 5  # records of training that are averaged


def main() -> None:
    """Reads metrics.jsonl of a run and writes an SVG file."""
    run, output = map(pathlib.Path, sys.argv[1:])
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    plt.rcParams.update({"svg.hashsalt": "spanjax", "font.size": 9, "svg.fonttype": "none"})
    figure, axes = plt.subplots(figsize=(6.4, 3.2))
    for name, colour in COLOURS.items():
        training = [(each["step"], each[key]) for each in records if (key := f"train/{name}/loss") in each]
        held_out = [(each["step"], each[key]) for each in records if (key := f"eval/{name}/loss") in each]
        steps, losses = np.array(training).T
        mean = np.convolve(losses, np.ones(SMOOTH) / SMOOTH, "valid")
        axes.plot(steps[SMOOTH - 1 :], mean, color=colour, linewidth=1.2, label=f"{name.upper()}, training")
        axes.plot(*np.array(held_out).T, "o", color=colour, markersize=3.5, label=f"{name.upper()}, held out (spans)")
    axes.set_xlabel("step", color=GREY)
    axes.set_ylabel("nats per masked token", color=GREY)
    axes.tick_params(colors=GREY)
    for spine in axes.spines.values():
        spine.set_color(GREY)
    for label in axes.legend(frameon=False).get_texts():
        label.set_color(GREY)
    axes.grid(color=GREY, alpha=0.2)
    figure.tight_layout()
    figure.savefig(output, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
