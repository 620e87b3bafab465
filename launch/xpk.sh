#!/usr/bin/env bash
# Trains on 1 TPU slice(s) v5e:4x8 of an xpk cluster: bash launch/xpk.sh
# The image is built from launch/Dockerfile; a storage of the cluster (`xpk storage`) holds the rows and the work directory.
# xpk starts all hosts again after the exit codes 3 and 75 of spanjax.train and after signals, at most 100 times in all;
# any other code ends the workload. Printed by `python -m spanjax.launch xpk --print`, which has these settings as options.

set -eu

# what the pods run; inside a pod one $ is written $$
pod_command=$(
  cat <<'END'
exec python -m spanjax.train --config configs/pretrain/spanbert_base.py --rows /data/rows --workdir /data/runs/spanbert_base
END
)

# the word by which the hosts of this workload know each other
SPANJAX_MEETING_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')

exec xpk workload create --cluster=CLUSTER \
  --workload=spanjax \
  --project=PROJECT \
  --zone=us-west4-a \
  --tpu-type=v5litepod-32 \
  --num-slices=1 \
  --docker-image=REGION-docker.pkg.dev/PROJECT/spanjax/spanjax:tpu \
  --priority=medium \
  --max-restarts=100 \
  --restart-on-exit-codes=3,75 \
  --termination-grace-period-seconds=600 \
  --storage=data \
  --env "SPANJAX_MEETING_TOKEN=$SPANJAX_MEETING_TOKEN" \
  --env SPANJAX_EXPECTED_DEVICES=32 \
  --env SPANJAX_STARTUP_TIMEOUT=1800 \
  --command="$pod_command"
