"""What `sluice nvme bench --op swap --tensors N` can reach, given what fio does by block."""

from __future__ import annotations

import math
from collections import Counter

from paired import MIB, PAGE

STATES = 3  # p, m and v


def tensor_sizes(count: int, size: int) -> list[int]:
    """As swap_tensor_sizes in nvme/src/measure/load_options.cpp, but for the order: in bytes, not padded."""
    region = size // STATES // PAGE * PAGE
    largest = min(max(region // 8, 1), 64 * MIB)
    ranks = [1.0] if count == 1 else [i / (count - 1) for i in range(count)]

    def sizes(exponent: float) -> list[int]:
        return [int(largest ** (rank**exponent)) for rank in ranks]

    most, least = 1e-3, 1e3
    for _ in range(60):
        middle = math.sqrt(most * least)
        if sum(map(padded, sizes(middle))) <= region:
            least = middle
        else:
            most = middle
    found = sizes(least)
    total = sum(map(padded, found))
    # The sizes fill the region by construction: where they do not, the program has other ones.
    if not 0.999 * region <= total <= region:
        raise ValueError(f"{count} tensors take {total} bytes of {region}")
    return found


def padded(size: int) -> int:
    return -(-max(size, 1) // PAGE) * PAGE


def requests_of(sizes: list[int], block: int) -> Counter:
    """How many requests there are of each size: whole blocks, and what is left of each tensor."""
    requests: Counter = Counter()
    for size in map(padded, sizes):
        requests[block] += size // block
        if size % block:
            requests[size % block] += 1
    return requests


def total_bytes(requests: Counter) -> int:
    return sum(size * count for size, count in requests.items())


def bound(requests: Counter, rates: dict[int, float]) -> float:
    """The rate if a request of each size moves as fast as blocks of that size do."""
    times = (size * count / rate_at(size, rates) for size, count in requests.items())
    return total_bytes(requests) / sum(times)


def rate_at(size: int, rates: dict[int, float]) -> float:
    """Between two blocks that were measured, in proportion to the logarithm of the size."""
    blocks = sorted(rates)
    for below, above in zip(blocks, blocks[1:]):
        if below <= size <= above:
            share = math.log2(size / below) / math.log2(above / below)
            return rates[below] + share * (rates[above] - rates[below])
    return rates[blocks[0] if size < blocks[0] else blocks[-1]]
