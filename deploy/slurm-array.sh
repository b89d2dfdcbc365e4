#!/bin/bash
# Tunes on several nodes of a Slurm cluster: each task of an array job a shard, then one job that merges and publishes.
#
#   job=$(sbatch --parsable deploy/slurm-array.sh)
#   sbatch --array=0 --dependency=afterok:$job deploy/slurm-array.sh merge
#
# A task that was stopped (time limit, preemption) goes on where it was when it is submitted again: `--array=3` for task 3,
# with NVKV_SHARDS=8, since Slurm then counts one task. Needs nvkv-tune in PATH and NVKV_NVRTC as on any machine.
#SBATCH --job-name=nvkv-tune
#SBATCH --array=0-7
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
set -euo pipefail

# What is tuned, and where results go: a folder that all nodes see. Each shard writes a database of its own there.
read -ra what <<< "${NVKV_ARGS:---arch sm_90 --preset standard}"
place=${NVKV_PLACE:-$PWD}
db=$place/db/nvkv.sqlite out=$place/kernels-out

if [ "${1:-shard}" = merge ]; then
    nvkv-tune merge --force "${db%.sqlite}".shard-*.sqlite -o "$db"
    # Nothing is timed again: this writes the bundle from what the shards found.
    nvkv-tune "${what[@]}" --db "$db" --out "$out"
else
    nvkv-tune "${what[@]}" --db "$db" --out "$out" --shard "$SLURM_ARRAY_TASK_ID/${NVKV_SHARDS:-$SLURM_ARRAY_TASK_COUNT}"
fi
