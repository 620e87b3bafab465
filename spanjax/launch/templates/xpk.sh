#!/usr/bin/env bash
# Trains on @@what of an xpk cluster: bash @@file
# The image is built from launch/Dockerfile; a storage of the cluster (`xpk storage`) holds the rows and the work directory.
# xpk starts all hosts again after the exit codes @@codes of spanjax.train and after signals, at most @@max_restarts times in all;
# any other code ends the workload. Printed by `python -m spanjax.launch xpk --print`, which has these settings as options.

set -eu

# what the pods run; inside a pod one $ is written $$
pod_command=$(
  cat <<'END'
exec @@command
END
)

# the word by which the hosts of this workload know each other
@@token

exec xpk workload create @@options
