"""Measuring several things in rounds that they share, so that all see the same moods of a machine."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

from paired import Progress


class Steps:
    """Progress over a known number of steps of about the same length, with the time left."""

    def __init__(self, progress: Progress, name: str) -> None:
        self.progress = progress
        self.name = name

    def expect(self, what: str, count: int) -> None:
        """A new stage of the row begins."""
        self.what, self.count, self.done, self.begin = what, count, 0, time.monotonic()

    def step(self, text: str) -> None:
        left = ""
        if self.done > 0:
            seconds = (time.monotonic() - self.begin) / self.done * (self.count - self.done)
            left = f"; about {seconds:.0f} s left"
        place = f"{self.done + 1} of {self.count}{left}"
        self.progress.show(f"{self.name}: {self.what}, {text} ({place})")
        self.done += 1


def sweep(candidates: list, rate: Callable[..., float], passes: int, steps: Steps) -> dict:
    """The rates of each candidate, one for each pass.

    A pass measures all of them, in an order of its own, so that no candidate always has its
    turn just after the same other one, and a machine whose speed moves misleads little.
    """
    draw = random.Random(1)
    rates: dict = {candidate: [] for candidate in candidates}
    for number in range(passes):
        for candidate in draw.sample(candidates, k=len(candidates)):
            steps.step(f"pass {number + 1} of {passes}")
            rates[candidate].append(rate(candidate))
    return rates


def best_of(rates: dict, among: Callable[..., bool] = lambda candidate: True):
    return max(filter(among, rates), key=lambda candidate: statistics.median(rates[candidate]))


def alternate(cases: dict, rounds: int, steps: Steps) -> dict:
    """Slices of each case's sides, by case and side, in turn; the order is turned every round.

    The cases share the rounds, so that all of them see the same moods of the machine.
    """
    steps.expect("comparing", rounds * sum(map(len, cases.values())))
    rates: dict = {case: {side: [] for side in sides} for case, sides in cases.items()}
    for number in range(rounds):
        for case, sides in cases.items():
            for side in list(sides) if number % 2 == 0 else reversed(sides):
                steps.step(f"round {number + 1} of {rounds}, {case}")
                rates[case][side].append(sides[side]())
    return rates
