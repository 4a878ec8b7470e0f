"""What an import costs beside PyTorch's own."""

from __future__ import annotations

import subprocess
import sys

MEASURE = """
import time, torch
begin = time.perf_counter()
import sluice
sluice.initialize, sluice.offload
print(time.perf_counter() - begin)
"""


def test_the_import_takes_at_most_a_third_of_a_second_more_than_pytorchs() -> None:
    seconds = []
    for _ in range(3):
        result = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, timeout=120, check=True)
        seconds.append(float(result.stdout))
    print(f"import sluice, sluice.initialize and sluice.offload: {min(seconds):.3f} s after PyTorch")
    assert min(seconds) <= 0.3
