#!/usr/bin/env bash
# Trains on the TPU slice @@topology: bash @@file, on a machine that stays on, with gcloud logged in.
# It requests the slice, runs the container of launch/Dockerfile on every worker, and continues with a new slice when this one is
# taken. It ends when the run is done (the slice is deleted), on wrong input, and after @@max_restarts other failures.
# Printed by `python -m spanjax.launch tpu-vm --print`, which has these settings as options.

set -u
name=@@name
place=(--project=@@project --zone=@@zone)

# what every worker runs: mounts the folder that they share, ends an earlier container (it saves), trains
worker_command=$(
  cat <<'END'
set -eu
@@login
command -v mount.nfs >/dev/null || sudo apt-get install --yes --quiet nfs-common
sudo mkdir -p /data
mountpoint -q /data || sudo mount -t nfs @@share /data
sudo docker stop --time=@@grace_seconds @@name >/dev/null 2>&1 || true
exec sudo docker run @@docker
END
)

state() {
  gcloud compute tpus queued-resources describe "$name" "${place[@]}" --format='value(state.state)' 2>/dev/null
}

create() {
  gcloud compute tpus queued-resources create "$name" "${place[@]}" --node-id="$name" \
    --accelerator-type=@@type --runtime-version=@@runtime @@spot
}

delete() {
  gcloud compute tpus queued-resources delete "$name" "${place[@]}" --force --quiet
}

train() { # with a new word by which the workers know each other
  local @@token_name
  @@token
  gcloud compute tpus tpu-vm ssh "$name" "${place[@]}" --worker=all \
    --command="@@token_name=$@@token_name"$'\n'"$worker_command"
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
      if [ "$code" -eq @@done ]; then
        delete
        exit 0
      fi
      echo "the run ended with $code" >&2
      if [ "$(state)" = ACTIVE ]; then # the slice is still there, so it was not a preemption
        failures=$((failures + 1))
      fi
      if [ "$code" -eq @@wrong ] || [ "$failures" -gt @@max_restarts ]; then
        echo "the slice is kept: gcloud compute tpus queued-resources delete $name ${place[*]} --force" >&2
        exit "$code"
      fi
      ;;
    SUSPENDED | FAILED)
      delete
      ;;
  esac
  sleep @@poll_seconds
done
