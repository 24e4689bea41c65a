# Sourced by the tools: one way to say things, to fail with advice, and to run a long step with visible progress.
# shellcheck shell=bash

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
log_dir=$top/build/log
phase_pid=

say() { printf '%s\n' "$*"; }

# die WHAT ADVICE...: what went wrong, and on the next lines what to do about it.
die() {
  printf '\n%s: %s\n' "$(basename "$0")" "$1" >&2
  shift
  for line in "$@"; do printf '  %s\n' "$line" >&2; done
  exit 1
}

# The CUDA compiler, empty where there is none: installers leave it off the PATH.
find_nvcc() { command -v nvcc || ls -d /usr/local/cuda/bin/nvcc 2> /dev/null || true; }

# "NVIDIA H200, 9.0": the first GPU and its compute capability, empty where the driver shows none.
find_gpu() { nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2> /dev/null | sed -n 1p || true; }

# How to get the compiler, for people.
toolkit_advice() {
  local system=debian12
  ! grep -qs '^ID=ubuntu' /etc/os-release || system=ubuntu2404
  printf '%s\n' "CUDA 13's compiler, runtime and cuBLAS from NVIDIA's packages (3 GB; or https://developer.nvidia.com/cuda-downloads):" \
    "  wget https://developer.download.nvidia.com/compute/cuda/repos/$system/x86_64/cuda-keyring_1.1-1_all.deb" \
    "  sudo dpkg -i cuda-keyring_1.1-1_all.deb && sudo apt-get update" \
    "  sudo apt-get install --no-install-recommends cuda-nvcc-13-0 cuda-cudart-dev-13-0 libcublas-dev-13-0"
}

stop_phase() {
  [ -z "$phase_pid" ] || kill "$phase_pid" 2>/dev/null || true
  exit 130
}
trap stop_phase INT TERM

# phase NAME COMMAND...: runs the command with its output in build/log/NAME.log. On a terminal one line shows the time and
# the newest line of that log; elsewhere such a line is printed every ten seconds. Returns the command's status, after
# printing the end of the log if it failed.
phase() {
  local name=$1 start=$SECONDS shown=$SECONDS status=0 log newest
  shift
  mkdir -p "$log_dir"
  log=$log_dir/${name// /-}.log
  "$@" > "$log" 2>&1 < /dev/null &
  phase_pid=$!
  while kill -0 "$phase_pid" 2>/dev/null; do
    sleep 0.2
    if [ -t 1 ] && [ $((SECONDS - start)) -ge 1 ] && [ "$SECONDS" != "$shown" ]; then
      shown=$SECONDS
      newest=$(tail -n 1 "$log" | tr -d '\r' | cut -c 1-70)
      printf '\r\033[K  %s: %d s  %s' "$name" $((SECONDS - start)) "$newest"
    elif [ ! -t 1 ] && [ $((SECONDS - shown)) -ge 10 ]; then
      shown=$SECONDS
      printf '  %s: %d s  %s\n' "$name" $((SECONDS - start)) "$(tail -n 1 "$log" | cut -c 1-100)"
    fi
  done
  wait "$phase_pid" || status=$?
  phase_pid=
  [ ! -t 1 ] || printf '\r\033[K'
  if [ "$status" = 0 ]; then
    say "$name: done in $((SECONDS - start)) s"
  else
    say "$name: FAILED after $((SECONDS - start)) s (status $status); the end of $log:"
    tail -n 40 "$log"
  fi
  return "$status"
}
