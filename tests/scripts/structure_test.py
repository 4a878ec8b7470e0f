"""scripts/check_structure.py on small trees: each finding, and what is none."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SCRIPT = REPOSITORY / "scripts" / "check_structure.py"
sys.path.insert(0, str(SCRIPT.parent))
from structure.sizes import EXCEPTIONS  # noqa: E402

PAGE = """# Architecture

## Layers

Arrows point down.

    engine/train    the engine
    nvme  cpu_adam  files | optimizers
    base            errors

## Rooms

Rooms include what is below them.

engine/train/src, top to bottom:

    ./               the library's entry
    run/             one run
    saved/  loop/    files | a loop
    device/gpu/      kernels
    device/          memory

## Next

    nvme  base
"""


class Structure(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-test-")
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        self.write("docs/architecture.md", PAGE)
        for component in ("base", "nvme", "cpu_adam", "engine/train"):
            self.write(f"{component}/CMakeLists.txt", "")
            name = component.rsplit("/", 1)[-1]
            self.write(f"{component}/include/sluice/{name}/{name}.hpp", f"// The contract of {name}.\n")
        for room in ("", "run/", "saved/", "loop/", "device/", "device/gpu/"):
            self.write(f"engine/train/src/{room}part.hpp", "#pragma once\n")
        for path in EXCEPTIONS:
            self.write(path, "")

    def write(self, file: str, text: str) -> None:
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def include(self, file: str, *targets: str) -> None:
        self.write(file, "".join(f'#include "{target}"\n' for target in targets))

    def check(self, *arguments: str) -> tuple[int, str]:
        command = [sys.executable, str(SCRIPT), "--root", str(self.root), *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(result.stderr, "")
        return result.returncode, result.stdout

    def finds(self, *parts: str) -> None:
        status, output = self.check()
        self.assertEqual(status, 1, output)
        for part in parts:
            self.assertIn(part, output)

    def passes(self) -> None:
        status, output = self.check()
        self.assertEqual(status, 0, output)
        self.assertIn(" 0 findings", output)

    def test_a_tree_without_findings_passes(self) -> None:
        self.include("nvme/src/file/file.cpp", "file.hpp", "sluice/base/base.hpp")
        self.include("nvme/src/file/file.hpp", "sluice/nvme/nvme.hpp")
        self.passes()

    def test_the_list_shows_the_order_as_it_was_read(self) -> None:
        _, output = self.check("--list")
        self.assertIn("  nvme (1)  cpu_adam (1)\n", output)
        self.assertIn("  ./ (1)\n  run/ (1)\n  saved/ (1)  loop/ (1)\n  device/gpu/ (1)\n  device/ (1)\n", output)

    def test_two_headers_in_a_circle_are_found(self) -> None:
        self.include("nvme/include/sluice/nvme/a.hpp", "sluice/nvme/b.hpp")
        self.include("nvme/include/sluice/nvme/b.hpp", "sluice/nvme/a.hpp")
        self.finds("circle of headers: 1", "a.hpp -> nvme/include/sluice/nvme/b.hpp -> nvme/include/sluice/nvme/a.hpp")

    def test_a_circle_through_sources_is_found_with_its_includes(self) -> None:
        self.include("nvme/src/a.hpp", "b.hpp")
        self.include("nvme/src/b.cpp", "b.hpp", "c.hpp")
        self.include("nvme/src/b.hpp")
        self.include("nvme/src/c.hpp", "a.hpp")
        self.finds("circle of files: 1", "nvme: a -> b -> c -> a", "nvme/src/b.cpp:2 includes nvme/src/c.hpp")

    def test_each_of_two_circles_is_printed(self) -> None:
        self.include("nvme/src/a.hpp", "b.hpp", "c.hpp")
        self.include("nvme/src/b.cpp", "a.hpp")
        self.include("nvme/src/c.cpp", "a.hpp")
        self.include("nvme/src/b.hpp")
        self.include("nvme/src/c.hpp")
        self.finds("circle of files: 2", "nvme: a -> b -> a", "nvme: a -> c -> a")

    def test_python_modules_in_a_circle_are_found(self) -> None:
        self.write("python/sluice/__init__.py", "from . import plan\n")
        self.write("python/sluice/_core.pyi", "")
        self.write("python/sluice/plan.py", "from . import _core\n\ndef plan():\n    from .loop.units import units\n")
        self.write("python/sluice/loop/__init__.py", "")
        self.write("python/sluice/loop/units.py", "import os\nfrom ..plan import plan\n")
        imports = "python/sluice/loop/units.py:2 imports python/sluice/plan.py"
        self.finds("circle of modules: 1", "sluice.loop.units -> sluice.plan -> sluice.loop.units", imports)

    def test_python_modules_may_name_each_other_for_types(self) -> None:
        self.write("python/sluice/plan.py", "from . import loop\n")
        self.write("python/sluice/loop.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .plan import plan\n")
        self.passes()

    def test_a_source_may_use_parts_that_build_on_its_public_header(self) -> None:
        self.include("nvme/src/nvme.cpp", "sluice/nvme/nvme.hpp", "queue.hpp")
        self.include("nvme/src/queue.hpp", "sluice/nvme/nvme.hpp")
        self.passes()

    def test_files_of_one_name_in_two_rooms_are_two(self) -> None:
        self.include("engine/train/src/run/settings.cpp", "loop/settings.hpp")
        self.include("engine/train/src/loop/settings.hpp", "device/settings.hpp")
        self.include("engine/train/src/device/settings.hpp")
        self.passes()

    def test_an_include_of_a_component_above_is_found(self) -> None:
        self.include("base/src/error.cpp", "sluice/base/base.hpp", "sluice/nvme/nvme.hpp")
        self.finds("upward include: 1", "base/src/error.cpp:2: base includes nvme/include/sluice/nvme/nvme.hpp")

    def test_components_of_one_line_do_not_include_one_another(self) -> None:
        self.include("cpu_adam/src/step.cpp", "sluice/nvme/nvme.hpp")
        self.finds("upward include: 1", "nvme is not below it")

    def test_a_component_that_the_page_does_not_name_is_found(self) -> None:
        self.write("zero/CMakeLists.txt", "")
        self.write("zero/src/unit.cpp", "")
        self.finds('zero is in no line of the block below "Layers"')

    def test_an_include_of_a_room_above_is_found(self) -> None:
        self.include("engine/train/src/device/memory.cpp", "run/part.hpp")
        self.finds("upward include: 1", "engine/train/src/device/memory.cpp:1: device/ includes")

    def test_rooms_of_one_line_do_not_include_one_another(self) -> None:
        self.include("engine/train/src/loop/loop.cpp", "saved/part.hpp")
        self.finds("upward include: 1", "saved/ is not below it")

    def test_a_room_includes_itself_and_those_below_it(self) -> None:
        self.include("engine/train/src/device/gpu/kernel.cu", "part.hpp", "device/part.hpp")
        self.include("engine/train/src/run/library.cpp", "run/part.hpp", "sluice/train/train.hpp")
        self.passes()

    def test_a_room_inside_a_room_has_a_place_of_its_own(self) -> None:
        self.include("engine/train/src/device/memory.hpp", "device/gpu/part.hpp")
        self.finds("upward include: 1", "device/gpu/ is not below it")

    def test_rooms_and_the_page_name_the_same_folders(self) -> None:
        self.include("engine/train/src/measure/probe.cpp")
        self.write("docs/architecture.md", PAGE.replace("    run/ ", "    attic/  old things\n    run/ "))
        self.finds("order: 2", "engine/train/src/measure/ is in no line", "engine/train/src/attic/ does not exist")

    def test_rooms_without_an_order_are_found(self) -> None:
        for room in ("text", "command"):
            self.include(f"nvme/src/{room}/part.hpp")
        self.finds('nvme/src has rooms, but no block below "Rooms"')

    def test_an_include_of_a_file_that_is_not_there_is_found(self) -> None:
        self.include("nvme/src/file/file.cpp", "moved.hpp")
        self.finds("include not found: 1", 'nvme/src/file/file.cpp:1: "moved.hpp"')

    def test_a_crowded_folder_is_found(self) -> None:
        for number in range(20):
            self.include(f"nvme/src/part{number}.hpp")
        self.passes()
        self.include("nvme/src/part20.hpp")
        self.finds("too many files: 1", "nvme/src: 21 files")

    def test_a_full_folder_of_tests_is_found(self) -> None:
        for number in range(20):
            self.write(f"tests/nvme/part{number}_test.cpp", "")
            self.write(f"tests/nvme/part{number}.json", "")
        self.passes()
        self.write("tests/nvme/part20_test.cpp", "")
        self.finds("too many files: 1", "tests/nvme: 21 files")

    def test_a_long_file_is_found(self) -> None:
        self.write("tests/nvme/file_test.cpp", "\n" * 400)
        self.passes()
        self.write("tests/nvme/file_test.cpp", "\n" * 401)
        self.finds("too many lines: 1", "tests/nvme/file_test.cpp: 401 lines")

    def test_a_public_struct_with_many_fields_is_found(self) -> None:
        fields = [f"  int field{i} = {i};  // of it\n" for i in range(20)]
        others = ["  static int shared;\n", "  using Number = int;\n", "  int sum() const { return 0; }\n", "  enum class Kind { a, b };\n"]
        self.write("nvme/include/sluice/nvme/many.hpp", "struct Many {\n" + "".join(fields + others) + "};\n")
        self.passes()
        self.write("nvme/include/sluice/nvme/many.hpp", "struct Many {\n" + "".join(others + fields) + "  Kind kind{};\n};\n")
        self.finds("too many fields: 1", "nvme/include/sluice/nvme/many.hpp:1: Many has 21 fields")

    def test_comments_of_public_headers_are_read_by_sentences(self) -> None:
        header = "nvme/include/sluice/nvme/words.hpp"
        lines = [
            "// Of a file.",
            "int size;",
            "int left;  // What is left.",
            "// Reads. The same",
            "// with a ticket.",
            "/* Writes. What it writes is whole. */",
            "//",
            '// "What is it?"',
        ]
        self.write(header, "\n".join(lines) + "\n")
        self.finds(
            "beginning of a sentence: 5",
            f'{header}:1: "Of a file."',
            f'{header}:3: "What is left."',
            f'{header}:4: "The same with a ticket."',
            f'{header}:6: "What it writes is whole."',
            f"{header}:8",
        )

    def test_other_comments_and_strings_are_not_read(self) -> None:
        self.write("nvme/src/file/file.cpp", "// What a file is.\n")
        self.write("nvme/include/sluice/nvme/words.hpp", '// The size of what is\n// What kind\nauto t = "// Of";\n')
        self.passes()

    def test_pages_are_read_without_headings_and_code(self) -> None:
        self.write("README.md", "# What is it?\n\nA page.\n\n    What is code\n\n```\nOf code\n```\n")
        self.write("docs/more/page.md", "One thing.\n\n## The same\n\nSays of\nWhat things.\n")
        self.passes()

    def test_paragraphs_items_and_cells_of_pages_are_read(self) -> None:
        self.write("README.md", "It runs. What it runs is small.\n\n- Of a kind.\n- **The same** again.\n")
        self.write("docs/more/page.md", "| name | text |\n|---|---|\n| size | What it takes |\n")
        self.finds("beginning of a sentence: 4", "README.md:1", "README.md:3", "README.md:4", "docs/more/page.md:3")

    def test_a_file_that_a_page_names_exists(self) -> None:
        self.write("README.md", "Run `scripts/build.sh ci` and read `nvme/src/file/file.cpp`.\n")
        self.write("docs/more/page.md", "| `sluice/nvme/nvme.hpp` | `sluice/base/gone.hpp` |\n")
        self.finds(
            "file named: 3",
            "README.md:1: scripts/build.sh does not exist",
            "README.md:1: nvme/src/file/file.cpp does not exist",
            "docs/more/page.md:1: sluice/base/gone.hpp does not exist",
        )
        self.write("scripts/build.sh", "")
        self.include("nvme/src/file/file.cpp")
        self.write("base/include/sluice/base/gone.hpp", "#pragma once\n")
        self.passes()

    def test_pages_about_the_code_name_files_with_their_folders(self) -> None:
        self.write("nvme/src/nvme.cpp", "")
        self.write("docs/more/page.md", "Beside `nvme.cpp`.\n")
        self.write("docs/developing.md", "`nvme.cpp` reads, `NAME.cpp` writes.\n")
        self.write("docs/architecture.md", PAGE + "\n`nvme/src/nvme.cpp` opens, `nvme.cpp` closes.\n")
        line = PAGE.count("\n") + 2
        self.finds(
            "file named: 2",
            f"docs/architecture.md:{line}: nvme.cpp lacks its folder",
            "docs/developing.md:1: nvme.cpp lacks its folder",
        )

    def test_a_symbol_named_with_a_file_occurs_in_it(self) -> None:
        self.write("nvme/src/nvme.cpp", "void Part::open() { open_all(); }\n")
        rows = [
            "`Part::open` and `Part::shut` (`nvme/src/nvme.cpp`); `opens` in",
            "`nvme/src/nvme.cpp`. `\"key\"`, `sluice nvme` and `open()` (`nvme/src/nvme.cpp`)",
            "",
            "| where | `nvme/src/nvme.cpp` | `Part::open`, then `drain` |",
            "| where | `nvme/src/nvme.cpp` | `open_all`, called by `nvme` (`nvme/CMakeLists.txt`) |",
            "| no file | `shut` | `drain` |",
        ]
        self.write("docs/architecture.md", PAGE + "\n" + "\n".join(rows) + "\n")
        self.write("docs/more/page.md", "`Part::open` and `leave` (`nvme/src/nvme.cpp`)\n")
        line = PAGE.count("\n") + 2
        self.finds(
            "symbol named: 4",
            f"docs/architecture.md:{line}: Part::shut does not occur in nvme/src/nvme.cpp",
            f"docs/architecture.md:{line}: opens does not occur in nvme/src/nvme.cpp",
            f"docs/architecture.md:{line + 3}: drain does not occur in nvme/src/nvme.cpp",
            "docs/more/page.md:1: leave does not occur in nvme/src/nvme.cpp",
        )
        self.write("nvme/src/nvme.cpp", "void Part::open() { open_all(); shut(); opens(); drain(); leave(); }\n")
        self.passes()

    def test_placeholders_and_files_of_runs_and_builds_are_not_looked_for(self) -> None:
        words = ["DIR/plot.py", "NAME.cpp", "tests/.../part_test.cpp", "nvme/*.hpp", "run1/plot.py", "build/a.sh", "/a.sh"]
        self.write("docs/architecture.md", PAGE + "\n" + "\n".join(f"`{word}`" for word in words) + "\n")
        self.passes()


if __name__ == "__main__":
    unittest.main()
