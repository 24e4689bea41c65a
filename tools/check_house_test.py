#!/usr/bin/env python3
"""Each rule of check_house.py finds its planted violation in a small made-up tree, and finds nothing in the clean one.

The clean tree is first checked to be clean, so that a rule that fires on anything would show.
"""

import pathlib
import subprocess
import tempfile
import unittest

import check_house

LONG = "int long_one(int x) {\n" + "  x += 1;\n" * 70 + "  return x;\n}\n"

TOUR = "# Architecture\n\n## Follow one request\n\n" + "".join(
    f"{i}. `src/kv/pool.h:Pool::take` says so\n" for i in range(1, 11)) + "\n## Next\n"

CLEAN = {
    "src/kv/pool.h": '#include "core/ids.h"\nnamespace kv {\nclass Pool {\n  int take() const { return 1; }\n};\n}\n',
    "src/sched/plan.cc": '#include "kv/pool.h"\n// a std::mutex in a comment is no mutex\nint plan() {\n  return 2;\n}\n',
    "src/core/ids.h": '#include "base/check.h"\n',
    "src/base/check.h": "#pragma once\n",
    "docs/architecture.md": TOUR,
}


class CheckHouse(unittest.TestCase):
    def findings(self, changes, exceptions=""):
        with tempfile.TemporaryDirectory() as folder:
            top = pathlib.Path(folder)
            for path, text in {**CLEAN, **changes}.items():
                (top / path).parent.mkdir(parents=True, exist_ok=True)
                (top / path).write_text(text)
            (top / "tools").mkdir()
            (top / "tools/house_exceptions.txt").write_text(exceptions)
            subprocess.run(["git", "init", "-q", folder], check=True)
            check_house.TOP = top
            check_house.EXCEPTIONS = top / "tools/house_exceptions.txt"
            return check_house.check_all().lines

    def assert_one(self, rule, changes, exceptions=""):
        found = self.findings(changes, exceptions)
        self.assertEqual(len(found), 1, found)
        self.assertIn(f": {rule}: ", found[0])

    def test_a_clean_tree_is_clean(self):
        self.assertEqual(self.findings({}), [])

    def test_include_table(self):
        self.assert_one("include-table", {"src/kv/other.cc": '#include "device/cpu.h"\n'})
        self.assert_one("include-table", {"src/core/other_test.cc": '#include "kv/pool.h"\n'})
        self.assert_one("include-table", {"src/kv/other_test.cc": '#include "engine/engine.h"\n'})
        self.assert_one("include-table", {"src/newroom/other.cc": "int x;\n"})

    def test_cycles_are_seen_even_where_the_table_is_wrong(self):
        check_house.MAY_INCLUDE["kv"] = {"sched"}
        try:
            self.assert_one("include-cycle", {"src/kv/other.cc": '#include "sched/plan.h"\n'})
        finally:
            check_house.MAY_INCLUDE["kv"] = set()

    def test_purity(self):
        for line in ("std::mutex lock;", "auto t = std::chrono::steady_clock::now();", "#include <fstream>"):
            self.assert_one("purity", {"src/sched/other.cc": line + "\n"})
        self.assertEqual(self.findings({"src/sched/other_test.cc": "std::mutex lock;\n"}), [])

    def test_environment_is_for_apps(self):
        self.assert_one("environment", {"src/load/other.cc": 'const char* x = getenv("X");\n'})
        self.assertEqual(self.findings({"apps/main.cc": 'const char* x = getenv("X");\n'}), [])

    def test_lengths(self):
        self.assert_one("file-length", {"src/kv/other.cc": "\n" * 801})
        self.assert_one("function-length", {"src/kv/other.cc": LONG})
        self.assert_one("function-length", {"src/kv/other.cc": "namespace kv {\nclass A {\n  A() : x_{1} {\n"
                                            + "    x_++;\n" * 70 + "  }\n  int x_;\n};\n}\n"})
        many = "".join(f"int f{i}() {{\n  return {i};\n}}\n" for i in range(60))
        self.assertEqual(self.findings({"src/kv/other.cc": "namespace kv {\n" + many + "}\n"}), [])

    def test_exceptions_need_a_reason_and_only_shrink(self):
        entry = "function-length src/kv/other.cc:long_one"
        self.assertEqual(self.findings({"src/kv/other.cc": LONG}, entry + "  # a table written out, one line a case\n"), [])
        self.assertEqual(len(self.findings({"src/kv/other.cc": LONG}, entry + "\n")), 2)
        self.assert_one("exceptions", {}, entry + "  # a table written out, one line a case\n")

    def test_words_and_paths(self):
        self.assert_one("debt", {"src/kv/other.cc": "// FIX" "ME later\n"})
        self.assert_one("machine-path", {"docs/page.md": "see /ho" "me/me/notes\n"})
        self.assert_one("page", {"src/kv/other.cc": "// see docs/" "gone.md\n"})
        self.assert_one("drawer", {"src/kv/block_utils.h": "\n"})
        self.assert_one("drawer", {"src/kv/manager.cc": "\n"})

    def test_tour(self):
        self.assert_one("tour", {"docs/architecture.md": TOUR.replace("10. `src/kv/pool.h", "10. `src/kv/gone.h")})
        self.assert_one("tour", {"docs/architecture.md": TOUR.replace("10. `src/kv/pool.h:Pool::take", "10. `src/kv/pool.h:Pool::give")})
        self.assert_one("tour", {"docs/architecture.md": TOUR.replace("10. ", "")})

    def test_options_and_their_page_agree(self):
        page = ("## `spillway serve MODEL`\n| `--port` | 1 |\n| `--shared` | 1 |\n"
                "## `spillway eval needles MODEL FILE`\n| `--output`, `-o` | md |\n")
        with tempfile.TemporaryDirectory() as folder:
            top = pathlib.Path(folder)
            (top / "docs").mkdir()
            (top / "docs/options.md").write_text(page)
            binary = top / "spillway"
            check_house.TOP = top

            def lines(serve, evaluate):
                binary.write_text(f"#!/bin/sh\ncase $1 in serve) echo '{serve}';; *) echo '{evaluate}';; esac\n")
                binary.chmod(0o755)
                findings = check_house.Findings()
                check_house.check_options(str(binary), findings)
                return findings.lines

            self.assertEqual(lines("--port --shared --help", "-o,--output --shared"), [])
            self.assertIn("--help has --new, the page has not", lines("--port --shared --new", "--output")[0])
            self.assertIn("the page has --shared, spillway serve --help has not", lines("--port", "--output")[0])
            self.assertIn("eval needles --help has --own", lines("--port --shared", "--output --own --shared")[0])


if __name__ == "__main__":
    unittest.main()
