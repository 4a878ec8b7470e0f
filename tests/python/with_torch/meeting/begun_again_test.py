"""A script ends torch.distributed, and begins it again in the same process."""

from __future__ import annotations

import os
from pathlib import Path

import forked
from forked import free_port, run_ranks

FOLDER = Path(__file__).parent.parent
AGAIN = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
import torch.distributed as dist
import sluice
from small_models import engine_of, make, train
from sluice import utils, zero
rank = int(os.environ["RANK"])
for start in ("of the script", "of sluice", "of sluice"):
    if start == "of the script":
        dist.init_process_group("gloo")
    engine = engine_of(make(blocks=1))
    train(engine, range(2))
    with zero.GatheredParameters(engine.module.norm.bias, modifier_rank=1):
        engine.module.norm.bias.data.fill_(rank)
    assert bool((utils.safe_get_full_fp32_param(engine.module.norm.bias) == 1).all())
    engine.save_checkpoint(sys.argv[2])
    engine.destroy()
    dist.destroy_process_group()
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("sluice-beats") <= 1
    assert 1 <= names.count("sluice-watch") <= 2  # that of this engine, and one that ends
open(os.path.join(sys.argv[2], f"ended{rank}"), "w").close()
"""


# At the port of before, which nothing keeps.
def test_engines_follow_a_torch_distributed_that_is_begun_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(AGAIN)
    run_ranks(2, script, FOLDER, tmp_path)
    assert {path.name for path in tmp_path.glob("ended*")} == {"ended0", "ended1"}


ENDED = """
import os, sys
sys.path.insert(0, sys.argv[1])
import torch.distributed as dist
from pathlib import Path
from small_models import config, engine_of, make, train
engine = engine_of(make(blocks=1), config("nvme", Path(sys.argv[2])), resume=False)
train(engine, range(1))
dist.destroy_process_group()
"""


def test_an_engine_that_outlives_torch_distributed_says_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ENDED)
    common = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [str(script), str(FOLDER), str(tmp_path)]
    ranks = [forked.Process(command, {**common, "RANK": str(rank)}, merges_outputs=True) for rank in range(2)]
    try:
        outputs = [rank.communicate(60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, output in zip(ranks, outputs):
        assert rank.returncode == 1, output
        assert "the script has ended torch.distributed (dist.destroy_process_group) before its engine" in output
        assert "call engine.destroy() of each engine first" in output
