"""Clocks, watts and temperature of the GPU while a group of tools/gpu_check runs, by one nvidia-smi that says them every second."""

import os
import pty
import statistics
import subprocess
import threading
import time

# Keys of a row's "gpu", as nvidia-smi calls them.
ASKED = {"sm_mhz": "clocks.sm", "watts": "power.draw", "celsius": "temperature.gpu"}


def number(word):
    """None for what this GPU does not tell: "[N/A]"."""
    try:
        return float(word)
    except ValueError:
        return None


def median_of(samples):
    """The medians of those samples in which the GPU was busy (of all, where it does not tell), {} without any."""
    busy = [values for values, busy in samples if busy is None or busy > 0]
    said = {}
    for i, key in enumerate(ASKED):
        values = [values[i] for values in busy if values[i] is not None]
        if values:
            said[key] = round(statistics.median(values), 1)
    return said | {"samples": len(busy)} if said else {}


class Sampler:
    """Samples while it is open; has none where nvidia-smi is not there or does not answer."""

    def __init__(self):
        self.samples = []  # (time, (values of ASKED, percent of the time in which kernels ran))
        self.process = None

    def __enter__(self):
        # The one that programs take.
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
        asked = ",".join([*ASKED.values(), "utilization.gpu"])
        command = ["nvidia-smi", "-i", gpu, f"--query-gpu={asked}", "--format=csv,noheader,nounits", "-l", "1"]
        try:
            # To a terminal it writes line by line, to a pipe when a block is full.
            own, its = pty.openpty()
        except OSError:
            return self
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=its, stderr=subprocess.DEVNULL)
            self.reader = threading.Thread(target=self.read, args=(own,), daemon=True)
            self.reader.start()
        except OSError:
            os.close(own)
        finally:
            os.close(its)
        return self

    def read(self, terminal):
        try:
            with os.fdopen(terminal) as lines:
                for line in lines:
                    *values, busy = map(number, line.split(","))
                    if len(values) == len(ASKED):
                        self.samples.append((time.time(), (values, busy)))
        except OSError:
            pass  # how a terminal ends whose program has

    def __exit__(self, *error):
        if not self.process:
            return
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join(5)

    def between(self, begin, end):
        return median_of([sample for at, sample in self.samples if begin <= at <= end])


def words(said):
    """As people read it, '' for nothing."""
    units = {"sm_mhz": "MHz", "watts": "W", "celsius": "C"}
    figures = ", ".join(f"{said[key]:.0f} {unit}" for key, unit in units.items() if key in said)
    return f"{figures} (medians of {said['samples']} seconds in which the GPU was busy)" if figures else ""
