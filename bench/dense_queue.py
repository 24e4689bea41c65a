"""A server that runs a few requests at a time, as a queue: what rate of arrivals it sustains, from its measured times.

Every request has a prompt of `prompt_s` seconds in `chunks` steps, in each of which the other running requests get a token, then makes
tokens in steps of step_s[rows - 1] seconds. A request waits until a slot is free. Whatever the rate, time between tokens is at most that of a
chunk, which is less than 25 steps: the other bound that the rate has to keep.
"""

import dataclasses


@dataclasses.dataclass
class Server:
    prompt_s: float
    chunks: int
    step_s: list  # by rows, from 1 to as many as there are slots

    @property
    def slots(self):
        return len(self.step_s)


def steps_between(slots, one_s, all_s):
    """Seconds of a step by rows, where that of one row and of `slots` are measured."""
    return [one_s + (all_s - one_s) * i / max(1, slots - 1) for i in range(slots)]


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
            step_s = server.step_s[len(running) - 1]
            steps = min(running)
            if free and begun < len(arrivals):
                steps = min(steps, int((arrivals[begun] - now) / step_s) + 1)
            now += steps * step_s
            running = [left - steps for left in running if left > steps]
        else:
            now = arrivals[begun]
    return waited


def mean_delay(server, rate, pattern, generated):
    """Over arrivals at the times of `pattern`, which are of one request a second, at another rate."""
    waited = delays(server, [at / rate for at in pattern], generated)
    return sum(waited) / len(waited)


def sustained_rate(server, pattern, generated, most_s=2.0):
    """The highest rate at which requests wait less than `most_s` on average."""
    busy = server.prompt_s + (generated - 1) * server.step_s[-1]
    low, high = 0.0, 2.0 * server.slots / busy
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_delay(server, middle, pattern, generated) < most_s else (low, middle)
    return low
