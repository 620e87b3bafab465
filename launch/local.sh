#!/usr/bin/env bash
# Trains in 2 process(es) on this machine. From the folder of the repository: bash launch/local.sh
# Printed by `python -m spanjax.launch local --print`, which has these settings as options.

set -eu

exec python -m spanjax.launch local --processes 2 --cpu-devices 1 -- \
  --config configs/pretrain/demo.py \
  --rows runs/demo/rows \
  --workdir runs/demo/two_processes
