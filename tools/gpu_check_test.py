#!/usr/bin/env python3
"""Results of gpu_check keep the groups that were not run, and the README's table stands between its marks."""

import importlib.machinery
import importlib.util
import json
import pathlib
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
loader = importlib.machinery.SourceFileLoader("gpu_check", str(HERE / "gpu_check"))
gpu_check = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
loader.exec_module(gpu_check)
row = gpu_check.gpu_rows.row


class Results(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.top = pathlib.Path(self.folder.name)
        self.path = self.top / "2026-01-02-gpu-x.json"

    def merge(self, path, commit, **groups):
        return gpu_check.merge(path, "GPU X", commit, groups)

    def test_other_groups_keep_their_rows_and_commits(self):
        self.merge(self.path, "aaa", ops=[row("a", "passes", "1", True)], kernels=[row("b", ">= 2", "1", False)])
        result = self.merge(self.path, "bbb", kernels=[row("b", ">= 2", "3", True)])
        self.assertEqual(json.loads(self.path.read_text()), result)
        self.assertEqual(result["groups"]["ops"]["commit"], "aaa")
        self.assertEqual(result["groups"]["kernels"]["commit"], "bbb")
        self.assertTrue(result["groups"]["kernels"]["rows"][0]["ok"])

    def test_another_day_goes_on_from_the_newest_file_of_the_same_gpu(self):
        self.merge(self.path, "aaa", ops=[row("a", "passes", "1", True)])
        self.merge(self.top / "2026-01-04-gpu-y.json", "ccc", ops=[row("a", "passes", "0", False)])
        result = self.merge(self.top / "2026-01-05-gpu-x.json", "bbb", kernels=[])
        self.assertEqual({name: g["commit"] for name, g in result["groups"].items()}, {"ops": "aaa", "kernels": "bbb"})
        self.assertEqual(len(list(self.top.glob("*.json"))), 3)

    def test_groups_that_are_gone_leave(self):
        self.path.write_text(json.dumps({"groups": {"gone": {"commit": "", "date": "", "rows": []}}}))
        self.assertEqual(list(self.merge(self.path, "aaa", ops=[])["groups"]), ["ops"])

    def test_the_table_has_a_line_for_every_row(self):
        result = self.merge(self.path, "aaa", ops=[row("a|b", "all", "1\n2", True)], kernels=[row("c", ">= 2", "1", False)])
        lines = gpu_check.table(result).splitlines()
        self.assertEqual(len(lines), 6)
        self.assertEqual(lines[3], "| a/b | all | 1 2 | yes |")
        self.assertTrue(lines[5].endswith("| **no** |"))

    def test_the_readme_changes_between_its_marks_only(self):
        readme = self.top / "README.md"
        begin, end = gpu_check.README_MARKS
        readme.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
        result = self.merge(self.path, "aaa", ops=[row("tests", "all", "1", True)], kernels=[row("new", ">= 2", "3", True)])
        for _ in range(2):
            gpu_check.write_readme(readme, result)
            text = readme.read_text()
            self.assertTrue(text.startswith(f"before\n{begin}\n") and text.endswith(f"{end}\nafter\n"), text)
            self.assertEqual(text.count("| new |"), 1)
            self.assertNotIn("old", text)
            self.assertNotIn("tests", text)
        readme.write_text("no marks\n")
        gpu_check.write_readme(readme, result)
        self.assertEqual(readme.read_text(), "no marks\n")


class Rows(unittest.TestCase):
    def test_every_group_says_what_it_checks(self):
        for name, group in gpu_check.GROUPS.items():
            self.assertTrue(group.__doc__, name)

    def test_times_against_a_peer(self):
        rows = gpu_check.gpu_rows
        self.assertTrue(rows.against("x", "", 50.0, 49.0, 0.95)["ok"])
        self.assertFalse(rows.against("x", "", 50.0, 40.0, 0.95)["ok"])
        self.assertFalse(rows.against("x", "", 50.0, None, 0.95)["ok"], "a peer that is not there is no success")
        self.assertTrue(rows.part("x", 6.0, 10.0, 0.65, "all")["ok"])
        self.assertFalse(rows.part("x", 7.0, 10.0, 0.65, "all")["ok"])

    def test_device_memory_leaves_its_share_for_kv(self):
        # 128k tokens wait in 2 GiB of FP32 rows.
        asked = gpu_check.gpu_rows.device_memory(2 << 30, 131072)[-1]
        self.assertGreater(asked, (4 << 30) + (256 << 20))
        self.assertLess(asked, (4 << 30) + (512 << 20))


if __name__ == "__main__":
    unittest.main()
