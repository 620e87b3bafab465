#!/usr/bin/env bash
# Trains on the TPU slice v5e:4x8: bash launch/tpu_vm.sh, on a machine that stays on, with gcloud logged in.
# It requests the slice, runs the container of launch/Dockerfile on every worker, and continues with a new slice when this one is
# taken. It ends when the run is done (the slice is deleted), on wrong input, and after 10 other failures.
# Printed by `python -m spanjax.launch tpu-vm --print`, which has these settings as options.

set -u
name=spanjax
place=(--project=PROJECT --zone=us-west4-a)

# what every worker runs: mounts the folder that they share, ends an earlier container (it saves), trains
worker_command=$(
  cat <<'END'
set -eu
sudo gcloud auth configure-docker REGION-docker.pkg.dev --quiet
command -v mount.nfs >/dev/null || sudo apt-get install --yes --quiet nfs-common
sudo mkdir -p /data
mountpoint -q /data || sudo mount -t nfs ADDRESS:/SHARE /data
sudo docker stop --time=600 spanjax >/dev/null 2>&1 || true
exec sudo docker run --rm --name=spanjax --privileged --net=host --user=0 \
  --volume=/data:/data \
  --env="SPANJAX_MEETING_TOKEN=$SPANJAX_MEETING_TOKEN" \
  --env=SPANJAX_EXPECTED_DEVICES=32 \
  --env=SPANJAX_STARTUP_TIMEOUT=600 \
  REGION-docker.pkg.dev/PROJECT/spanjax/spanjax:tpu \
  python -m spanjax.train \
  --config configs/pretrain/spanbert_base.py \
  --rows /data/rows \
  --workdir /data/runs/spanbert_base
END
)

state() {
  gcloud compute tpus queued-resources describe "$name" "${place[@]}" --format='value(state.state)' 2>/dev/null
}

create() {
  gcloud compute tpus queued-resources create "$name" "${place[@]}" --node-id="$name" \
    --accelerator-type=v5litepod-32 --runtime-version=v2-alpha-tpuv5-lite --spot
}

delete() {
  gcloud compute tpus queued-resources delete "$name" "${place[@]}" --force --quiet
}

train() { # with a new word by which the workers know each other
  local SPANJAX_MEETING_TOKEN
  SPANJAX_MEETING_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
  gcloud compute tpus tpu-vm ssh "$name" "${place[@]}" --worker=all \
    --command="SPANJAX_MEETING_TOKEN=$SPANJAX_MEETING_TOKEN"$'\n'"$worker_command"
}

failures=0
while true; do
  case "$(state)" in
    "")
      create || exit
      ;;
    ACTIVE)
      train
      code=$?
      if [ "$code" -eq 0 ]; then
        delete
        exit 0
      fi
      echo "the run ended with $code" >&2
      if [ "$(state)" = ACTIVE ]; then # the slice is still there, so it was not a preemption
        failures=$((failures + 1))
      fi
      if [ "$code" -eq 2 ] || [ "$failures" -gt 10 ]; then
        echo "the slice is kept: gcloud compute tpus queued-resources delete $name ${place[*]} --force" >&2
        exit "$code"
      fi
      ;;
    SUSPENDED | FAILED)
      delete
      ;;
  esac
  sleep 60
done
