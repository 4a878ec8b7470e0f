#!/usr/bin/env python3
"""Tests of scripts/mutate_order.py: what it finds in C++ text, and that a changed file is taken back."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import mutate_order  # noqa: E402

TEXT = """#include "x.hpp"
// update->finish(); after) in a comment
void f(const ComputePoint& after) {
  if (update) update->finish();
  mover
      ->begin_fetch(home, full.subspan(range.begin * 2, 4), after)
      .finish();
  error = error_of([&] { finish_all(tile.pending, stalls.seconds); });
  const ComputePoint unused = device->mark_compute();
  worker->begin([this, after] { stall = context.stalls.wait(gather); });
  if (after.event() != nullptr) order("update->finish();");
}
"""


class MutateOrder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        mutate_order.ROOT = pathlib.Path(self.folder.name)
        mutate_order.CACHE = mutate_order.ROOT / "cache"
        mutate_order.SAVED = mutate_order.CACHE / "original"
        (mutate_order.ROOT / "x.cpp").write_text(TEXT)
        self.mutants = mutate_order.mutants_of("x.cpp")

    def tearDown(self):
        self.folder.cleanup()

    def changed(self, index):
        mutate_order.apply(self.mutants[index])
        changed = (mutate_order.ROOT / "x.cpp").read_text().splitlines()
        mutate_order.restore()
        before = TEXT.splitlines()
        return [line.strip() for line in changed if line not in before]

    def test_finds_each_wait_and_each_point_once(self):
        found = [(m.line, m.kind) for m in self.mutants]
        self.assertEqual(found, [(4, "ticket"), (5, "ticket"), (6, "after"), (8, "tickets"), (9, "point"),
                                 (10, "stall"), (11, "event")])
        self.assertEqual(len({m.key for m in self.mutants}), len(found))

    def test_leaks_a_ticket_because_its_destructor_waits(self):
        self.assertEqual(self.changed(0), ["if (update) static_cast<void>(new auto(std::move(*(update))));"])
        self.assertEqual(self.changed(3),
                         ["error = error_of([&] { (static_cast<void>(new auto(std::move(tile.pending))), "
                          "static_cast<void>(stalls.seconds)); });"])

    def test_all_at_once_are_chosen_by_a_variable(self):
        written = mutate_order.apply_all(self.mutants)
        changed = (mutate_order.ROOT / "x.cpp").read_text()
        self.assertEqual([m.key for m in written], [self.mutants[i].key for i in (0, 1, 3, 4, 5, 6)])  # 2 is inside 1
        self.assertIn(f'(sluice_mutant("{written[0].key}") ? '
                      "(static_cast<void>(new auto(std::move(*(update))))) : (update->finish()));", changed)
        self.assertTrue(changed.startswith(mutate_order.CHOSEN))
        mutate_order.restore()
        self.assertEqual((mutate_order.ROOT / "x.cpp").read_text(), TEXT)

    def test_empties_a_point(self):
        self.assertEqual(self.changed(2), ["->begin_fetch(home, full.subspan(range.begin * 2, 4), "
                                           "(static_cast<void>(after), std::decay_t<decltype(after)>{}))"])
        self.assertEqual(self.changed(4), ["const ComputePoint unused = (static_cast<void>(device->mark_compute()), "
                                           "std::decay_t<decltype(device->mark_compute())>{});"])
        self.assertEqual(self.changed(6), ['if (false) order("update->finish();");'])

    def test_takes_back_what_a_killed_call_left(self):
        mutate_order.apply(self.mutants[0])
        self.assertNotEqual((mutate_order.ROOT / "x.cpp").read_text(), TEXT)
        mutate_order.restore()
        self.assertEqual((mutate_order.ROOT / "x.cpp").read_text(), TEXT)
        mutate_order.restore()  # nothing is left to take back

    def test_finds_the_sources_of_failed_objects(self):
        build = mutate_order.ROOT / "build"
        together = build / "zero/CMakeFiles/sluice_zero.dir/Unity/unity_src_0_cxx.cxx"
        together.parent.mkdir(parents=True)
        together.write_text(f'#include "{mutate_order.ROOT}/zero/src/a.cpp"\n#include "{mutate_order.ROOT}/zero/src/b.cpp"\n')
        log = ("[1/3] Building CXX object x.o\nFAILED: zero/CMakeFiles/sluice_zero.dir/Unity/unity_src_0_cxx.cxx.o \n"
               "FAILED: [code=1] offload/CMakeFiles/sluice_offload.dir/src/transfer/mover.cpp.o\n")
        self.assertEqual(mutate_order.sources_of(log, build),
                         {"zero/src/a.cpp", "zero/src/b.cpp", "offload/src/transfer/mover.cpp"})


if __name__ == "__main__":
    unittest.main()
