#!/usr/bin/env bash
# Trains in @@processes process(es) on this machine. From the folder of the repository: bash @@file
# Printed by `python -m spanjax.launch local --print`, which has these settings as options.

set -eu
@@exports

exec @@command
