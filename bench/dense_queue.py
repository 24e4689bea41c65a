"""A server that runs a few requests at a time, as a queue: what rate of Poisson arrivals it sustains, from its measured times.

Every request has a prompt of `prompt_s` seconds in `chunks` steps, in each of which the other running requests get a token, then makes
tokens in steps of `step_s`. A request waits until one of `slots` is free.
"""

import dataclasses
import random


@dataclasses.dataclass
class Server:
    slots: int
    prompt_s: float
    chunks: int
    step_s: float


def delays(server, arrivals, generated):
    """Seconds from each arrival until its prompt begins."""
    now, waited, running, begun = 0.0, [], [], 0
    while begun < len(arrivals) or running:
        free = len(running) < server.slots
        if free and begun < len(arrivals) and arrivals[begun] <= now:
            waited.append(now - arrivals[begun])
            begun += 1
            now += server.prompt_s
            running = [left - server.chunks for left in running if left > server.chunks] + [generated - 1]
        elif running:
            steps = min(running)
            if free and begun < len(arrivals):
                steps = min(steps, int((arrivals[begun] - now) / server.step_s) + 1)
            now += steps * server.step_s
            running = [left - steps for left in running if left > steps]
        else:
            now = arrivals[begun]
    return waited


def mean_delay(server, rate, count, generated, seeds=20):
    """Over `count` arrivals, as the load test draws them: scaled so that they take count / rate seconds."""
    total = 0.0
    for seed in range(seeds):
        draw = random.Random(seed)
        gaps = [draw.expovariate(1.0) for _ in range(count)]
        at, arrivals = 0.0, []
        for gap in gaps:
            arrivals.append(at)
            at += gap * count / rate / sum(gaps)
        waited = delays(server, arrivals, generated)
        total += sum(waited) / len(waited)
    return total / seeds


def sustained_rate(server, count, generated, most_s=2.0):
    """The highest rate at which requests wait less than `most_s` on average."""
    busy = server.prompt_s + (generated - 1) * server.step_s
    low, high = 0.0, 2.0 * server.slots / busy
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_delay(server, middle, count, generated) < most_s else (low, middle)
    return low
