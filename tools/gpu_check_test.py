#!/usr/bin/env python3
"""Results of gpu_check keep the groups that were not run, and the README's table stands between its marks."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

HERE = pathlib.Path(__file__).resolve().parent
loader = importlib.machinery.SourceFileLoader("gpu_check", str(HERE / "gpu_check"))
gpu_check = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
loader.exec_module(gpu_check)
row = gpu_check.gpu_rows.row
engine_rows = gpu_check.gpu_engine_rows
queue = engine_rows.dense_queue


class GatherRows(unittest.TestCase):
    PRINTED = """NVIDIA X: pool of 96.0 GiB pinned in 13.72 s
| one big copy | 54.7 (1.000) | 54.9 (1.000) | 55.0 (1.000) | 55.0 (1.000) | 54.8 (1.000) |
| uva 4 blocks, 128 KB in flight | 37.6 (0.687) | 40.3 (0.984) | 42.9 (0.980) | 43.7 (0.994) | 45.2 (0.826) |
| uva 4 blocks, 192 KB in flight | 49.2 (0.899) | 50.0 (0.912) | 49.9 (0.906) | 48.0 (0.870) | 50.4 (0.920) |
| bulk 8 blocks in pairs, 192 KB in flight | 50.2 (0.916) | 45.0 (0.820) | 50.3 (0.913) | 48.1 (0.875) | 50.5 (0.923) |
| bulk 16 blocks in pairs, 192 KB in flight | 50.3 (0.919) | 50.4 (0.990) | 50.5 (0.990) | 50.6 (0.990) | 50.5 (0.922) |
"""

    def test_takes_the_best_of_few_blocks_as_they_ship(self):
        rows = list(gpu_check.gpu_rows.gather_rows(self.PRINTED))
        self.assertEqual([r["ok"] for r in rows], [True, True, False])
        self.assertEqual([r["measured"] for r in rows], [
            "50.3 GB/s, 0.913 of it: bulk 8 blocks in pairs, 192 KB in flight, from a pool of 96.0 GiB",
            "50.0 GB/s, 0.912 of it: uva 4 blocks, 192 KB in flight, from a pool of 96.0 GiB",
            "48.1 GB/s, 0.875 of it: bulk 8 blocks in pairs, 192 KB in flight, from a pool of 96.0 GiB"])

    def test_a_measurement_that_did_not_run_is_a_miss(self):
        self.assertEqual([r["ok"] for r in gpu_check.gpu_rows.gather_rows("")], [False] * 3)


class NeighbourRows(unittest.TestCase):
    PRINTED = """| M | gather | alone, all SMs | alone, SMs left | beside, all SMs | beside, SMs left | ratio | gather GB/s |
| 8 | bulk x 4, pairs, own SMs, 256 KB | 57.7 | 56.1 | 82.8 | 62.0 | 1.157 | 49.6 |
| 8 | bulk x 6, pairs, own SMs, 256 KB | 57.7 | 56.1 | 82.8 | 62.0 | 1.075 | 47.7 |
| 64 | bulk x 4, pairs, own SMs, 128 KB | 63.7 | 61.6 | 100.4 | 68.1 | 1.010 | 44.0 |
| 64 | bulk x 6, pairs, own SMs, 256 KB | 63.7 | 61.6 | 100.4 | 68.1 | 1.120 | 49.7 |
| 64 | uva x 4, own SMs, 192 KB | 63.7 | 61.6 | 100.4 | 68.1 | 1.114 | 50.0 |
| 2048 | bulk x 4, pairs, own SMs, 128 KB | 601.0 | 595.4 | 684.6 | 605.8 | 1.008 | 50.8 |
| 2048 | uva-page x 0, 0 KB | 599.6 | 599.6 | 2039.2 | 2039.2 | 3.350 | 36.4 |
"""

    def test_what_ships_is_judged_and_the_best_said(self):
        rows = {r["what"].split()[2]: r for r in gpu_check.gpu_rows.neighbour_rows(self.PRINTED)}
        self.assertEqual({m: r["ok"] for m, r in rows.items()}, {"8": False, "64": True, "2048": False})
        ships = "bulk x 6, pairs, own SMs, 256 KB, which ships; best: "
        self.assertEqual(rows["8"]["measured"], f"1.075x at 47.7 GB/s, {ships}1.157x at 49.6 GB/s, bulk x 4, pairs, own SMs, 256 KB")
        self.assertEqual(rows["64"]["measured"], f"1.120x at 49.7 GB/s, {ships}1.114x at 50.0 GB/s, uva x 4, own SMs, 192 KB")
        self.assertEqual(rows["2048"]["measured"], f"not measured, {ships}1.008x at 50.8 GB/s, bulk x 4, pairs, own SMs, 128 KB")

    def test_what_ships_is_what_the_plan_has_and_is_measured(self):
        plan = (HERE.parent / "src/store/cuda/gather_plan.h").read_text()
        self.assertIn("kGatherBlocks = 6;", plan)
        self.assertIn("kGatherBytesInFlight = 256 << 10;", plan)
        bench = (HERE.parent / "src/exec/cuda/gather_neighbour_bench.cc").read_text()
        self.assertIn('{"bulk", gather_bulk, 6, 2, true, 256 << 10}', bench)
        self.assertEqual(gpu_check.gpu_rows.SHIPPED, "bulk x 6, pairs, own SMs, 256 KB")

    def test_a_measurement_that_did_not_run_is_a_miss(self):
        self.assertEqual([r["ok"] for r in gpu_check.gpu_rows.neighbour_rows("")], [False])


class SparseRows(unittest.TestCase):
    PRINTED = """us of a layer, 8 x 128k, Hk 8 G 4 D 128, P 32, K 64: 8 layers in a graph
resident: score 34.6  select 7.6  both 42.2  attend 24.6  sum 66.8  chain 68.0
resident, reusing: both 6.0  attend 24.6  sum 30.6  chain 31.0
resident, reuse 4: mean of a step 40.0
tables: score 34.6  select 8.4  both 43.8  attend 24.6  sum 68.4  chain 120.0
tables, reusing: both 7.0  attend 24.6  sum 31.6  chain 32.0
tables, reuse 4: mean of a step 70.0
"""

    def rows(self, texts, cudnn):
        ours = gpu_check.gpu_rows.Turns()
        for text in texts:
            ours.add(gpu_check.gpu_rows.sparse_times(text))
        return list(gpu_check.gpu_rows.sparse_rows(ours, cudnn))

    def test_the_chain_is_judged_and_not_the_sum_of_its_parts(self):
        slow = self.PRINTED.replace("chain 68.0", "chain 500.0")
        rows = self.rows([self.PRINTED, slow, self.PRINTED], [1000.0, 1000.0, 1.0])
        said = "x, medians of 3 turns"
        self.assertEqual([(r["ok"], r["measured"]) for r in rows], [
            (True, f"68.0 against 1000.0 us of cuDNN: 14.71{said}; parts alone: 34.6 + 7.6, in two launches 42.2, + 24.6"),
            (True, f"40.0 against 1000.0 us of cuDNN: 25.00{said}; a layer that reuses takes 31.0"),
            (False, f"120.0 against 1000.0 us of cuDNN: 8.33{said}; parts alone: 34.6 + 8.4, in two launches 43.8, + 24.6"),
            (False, f"70.0 against 1000.0 us of cuDNN: 14.29{said}; a layer that reuses takes 32.0")])
        self.assertEqual(len({r["what"] for r in rows}), 4)
        self.assertEqual(rows[0]["ours_turns"], [68.0, 500.0, 68.0])

    def test_what_is_read_is_what_the_program_prints(self):
        source = (HERE.parent / "src/ops/cuda/sparse_decode_cuda_bench.cc").read_text()
        for line in ("%s: score %.1f  select %.1f  both %.1f  attend %.1f  sum %.1f  chain %.1f", "  chain %.1f", "%s, reuse %d: mean of a step %.1f",
                     "%s, reusing: both %.1f  attend"):
            self.assertIn(line, source)
        for name in gpu_check.gpu_rows.LOOK_UPS:
            self.assertIn(f'bench.variant("{name}", ', source)
        self.assertRegex("sparse_decode_cuda_bench", f"^({gpu_check.gpu_rows.PROGRAMS['kernels']})$")

    def test_a_measurement_that_did_not_run_is_a_miss(self):
        for texts, cudnn in (([""], [1000.0]), ([self.PRINTED], [])):
            self.assertEqual([(r["ok"], r["measured"][:12]) for r in self.rows(texts, cudnn)], [(False, "not measured")] * 4)


# Answers as gpu_peers.py --in-turns does, each time slower; the third question is its last.
FAKE_PEERS = """import json, sys
for turn, line in enumerate(sys.stdin, 1):
    if turn > {last}:
        sys.exit("no more")
    names = line.split() if line.strip() != "all" else ["prefill_32768_us", "prefill_flash_32768_us", "decode_8x131072_us"]
    print(json.dumps({{name: 1000.0 * turn for name in names}}), flush=True)
"""


class KernelTurns(unittest.TestCase):
    """Ours and the libraries' run one behind the other, several times over."""

    def setUp(self):
        self.asked = []

    def kernels(self, last=99, broken=()):
        rows = gpu_check.gpu_rows
        test = self

        class Fake:
            programs = dict.fromkeys(("prefill_bench", "attention_cuda_bench", "sparse_decode_cuda_bench", "select_cuda_bench"))

            def __init__(self):
                self.logs = {}

            def run(self, name, *arguments):
                test.asked.append((name, *map(str, arguments)))
                nth = sum(asked[0] == name for asked in test.asked)
                if name in broken:
                    return 1, "broken"
                only = arguments[arguments.index("--only") + 1] if "--only" in arguments else ""
                cases = {"32k": 1000.0 + nth, "128k": 9000.0, "128k-half-streaming": 5000.0}
                return 0, {"prefill_bench": "".join(f"{case} T 32768 D 128 P 32 {us} us (best 1.0) 600.0 TFLOP/s\n" for case, us in cases.items()
                                                    if only in ("", case)),
                           "attention_cuda_bench": f"{rows.DENSE_DECODE}   {900.0 + nth} us 4000 GB/s\n{rows.DENSE_DECODE} list 64  24.0 us 1 GB/s\n",
                           "sparse_decode_cuda_bench": SparseRows.PRINTED}.get(name, "x\n")

            def log(self, name, text):
                self.logs[name] = text

        self.machine = Fake()
        command = ("python3", "-c", FAKE_PEERS.format(last=last))
        with unittest.mock.patch.object(rows.Peers, "COMMAND", command):
            return {r["what"]: r for r in rows.kernels(self.machine)}

    def test_each_has_a_turn_behind_the_other(self):
        rows = self.kernels()
        prompt = rows["prefill attention, 32k, all heads dense"]
        self.assertEqual((len(prompt["ours_turns"]), prompt["peer_turns"]), (3, [1000.0, 2000.0, 5000.0]))
        self.assertIn("medians of 3 turns", prompt["measured"])
        dense = rows["dense paged decode, batch 8 at 128k"]
        self.assertEqual((dense["ours"], dense["peer_turns"]), (902.0, [1000.0, 3000.0, 4000.0, 6000.0, 7000.0]))
        self.assertIn("medians of 3 and 5 turns", dense["measured"])
        names = [name for name, *_ in self.asked if name in ("prefill_bench", "attention_cuda_bench")]
        self.assertEqual(names, ["prefill_bench", "attention_cuda_bench", *(["prefill_bench"] * 3 + ["attention_cuda_bench"]) * 2])
        self.assertEqual(rows["prefill attention, 128k, half of the KV heads streaming"]["measured"], "5.00 against 9.00 ms of dense: 0.556")
        self.assertIn("6000.0", self.machine.logs["peers"])

    def test_libraries_that_end_early_leave_the_turns_that_there_were(self):
        rows = self.kernels(last=3)
        self.assertEqual(rows["dense paged decode, batch 8 at 128k"]["peer_turns"], [1000.0, 3000.0])
        self.assertIn("no more", self.machine.logs["peers"])

    def test_without_the_libraries_or_ours_nothing_is_met(self):
        for rows in (self.kernels(last=0), self.kernels(broken=("prefill_bench", "attention_cuda_bench", "sparse_decode_cuda_bench"))):
            met = [what for what, r in rows.items() if r["ok"]]
            self.assertFalse([what for what in met if "attend" in what or "decode" in what or "all heads dense" in what], met)

    def test_the_libraries_are_asked_for_what_they_measure(self):
        fakes = {name: unittest.mock.MagicMock() for name in ("torch", "torch.nn", "torch.nn.functional", "torch.nn.attention")}
        said = io.StringIO()
        with unittest.mock.patch.dict(sys.modules, fakes), contextlib.redirect_stdout(said):
            peers = importlib.import_module("gpu_peers")
            asked = [names for names, *_ in gpu_check.gpu_rows.AGAIN if names]
            with unittest.mock.patch.object(peers, "samples_us", lambda work, repeats: [1.0, 2.0, 9.0]), \
                    unittest.mock.patch.object(sys, "argv", ["gpu_peers.py", "--in-turns"]), \
                    unittest.mock.patch.object(sys, "stdin", io.StringIO("".join(" ".join(names) + "\n" for names in asked))):
                peers.main()
        self.assertEqual([json.loads(line) for line in said.getvalue().splitlines()], [dict.fromkeys(names, 2.0) for names in asked])
        self.assertEqual(fakes["torch"].cuda.empty_cache.call_count, len(asked))

    def test_the_bench_knows_the_shape_that_is_asked_for(self):
        source = (HERE.parent / "src/ops/cuda/attention_cuda_bench.cu").read_text()
        self.assertIn('"decode {:<7} Hq {} Hk {} D {} P {} batch {} context {}{}{}"', source)
        self.assertIn('(name + "$").find(filter)', source)
        cases = (HERE.parent / "src/ops/cuda/prefill_bench.cc").read_text()
        for _, program, arguments in gpu_check.gpu_rows.AGAIN:
            if program == "prefill_bench":
                self.assertIn(f'.name = "{arguments[-1]}"', cases)


class Results(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.top = pathlib.Path(self.folder.name)
        self.path = self.top / "2026-01-02-gpu-x.json"

    def merge(self, path, commit, group, rows, is_whole=True):
        return gpu_check.merge(path, "GPU X", group, [{**r, "commit": commit, "date": "2026-01-02"} for r in rows], is_whole)

    def test_other_groups_keep_their_rows_and_commits(self):
        self.merge(self.path, "aaa", "ops", [row("a", "passes", "1", True)])
        self.merge(self.path, "aaa", "kernels", [row("b", ">= 2", "1", False)])
        result = self.merge(self.path, "bbb", "kernels", [row("b", ">= 2", "3", True)])
        self.assertEqual(json.loads(self.path.read_text()), result)
        self.assertEqual([r["commit"] for r in result["groups"]["ops"]], ["aaa"])
        self.assertEqual([r["commit"] for r in result["groups"]["kernels"]], ["bbb"])
        self.assertTrue(result["groups"]["kernels"][0]["ok"])

    def test_a_group_that_was_stopped_keeps_the_older_figures_of_what_it_did_not_reach(self):
        self.merge(self.path, "aaa", "kernels", [row("b", "", "1", True), row("c", "", "1", True)])
        result = self.merge(self.path, "bbb", "kernels", [row("b", "", "2", True)], is_whole=False)
        self.assertEqual([(r["what"], r["commit"]) for r in result["groups"]["kernels"]], [("b", "bbb"), ("c", "aaa")])
        result = self.merge(self.path, "ccc", "kernels", [row("b", "", "3", True)])
        self.assertEqual([(r["what"], r["commit"]) for r in result["groups"]["kernels"]], [("b", "ccc")])

    def test_another_day_goes_on_from_the_newest_file_of_the_same_gpu(self):
        self.merge(self.path, "aaa", "ops", [row("a", "passes", "1", True)])
        self.merge(self.top / "2026-01-04-gpu-y.json", "ccc", "ops", [row("a", "passes", "0", False)])
        result = self.merge(self.top / "2026-01-05-gpu-x.json", "bbb", "kernels", [row("b", "", "1", True)])
        self.assertEqual({name: rows[0]["commit"] for name, rows in result["groups"].items()}, {"ops": "aaa", "kernels": "bbb"})
        self.assertEqual(len(list(self.top.glob("*.json"))), 3)

    def test_groups_that_are_gone_leave(self):
        self.path.write_text(json.dumps({"groups": {"gone": []}}))
        self.assertEqual(list(self.merge(self.path, "aaa", "ops", [])["groups"]), ["ops"])

    def test_a_result_under_another_name_is_refused(self):
        (self.top / "taken.json").write_text(json.dumps({"gpu": "x", "groups": {"ops": []}}))
        with self.assertRaisesRegex(SystemExit, "taken.json: expected a result under the name"):
            gpu_check.take(self.top / "taken.json", self.top)

    def test_a_result_of_another_machine_is_taken_row_by_row(self):
        self.merge(self.path, "aaa", "kernels", [row("b", "", "1", True), row("c", "", "1", True)])
        other = self.top / "other"
        self.merge(other / "2026-01-03-gpu-x.json", "bbb", "kernels", [row("c", "", "2", True)])
        with unittest.mock.patch.object(gpu_check, "TOP", self.top), contextlib.redirect_stdout(io.StringIO()):
            (self.top / "README.md").write_text("no marks\n")
            gpu_check.take(other / "2026-01-03-gpu-x.json", self.top)
        rows = json.loads((self.top / "2026-01-03-gpu-x.json").read_text())["groups"]["kernels"]
        self.assertEqual({r["what"]: r["commit"] for r in rows}, {"b": "aaa", "c": "bbb"})

    def test_the_table_has_a_line_for_every_row(self):
        self.merge(self.path, "aaa", "ops", [row("a|b", "all", "1\n2", True)])
        result = self.merge(self.path, "bbb", "kernels", [row("c", ">= 2", "1", False)])
        lines = gpu_check.table(result["groups"]).splitlines()
        self.assertEqual(len(lines), 6)
        self.assertEqual(lines[3], "| a/b | all | 1 2 | yes | aaa |")
        self.assertTrue(lines[5].endswith("| **no** | bbb |"))

    def test_the_readme_changes_between_its_marks_only(self):
        readme = self.top / "README.md"
        begin, end = gpu_check.README_MARKS
        readme.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
        self.merge(self.path, "aaa", "ops", [row("tests", "all", "1", True)])
        result = self.merge(self.path, "aaa", "kernels", [row("new", ">= 2", "3", True)])
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


class Building(unittest.TestCase):
    """A machine without network builds with what is there."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = pathlib.Path(folder.name)

    def script(self, name, text):
        path = self.top / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def build(self, setup, build, groups):
        self.script("tools/setup", f"exit {setup}")
        self.script("tools/build", f'echo "$SPILLWAY_SKIP_SETUP $@" > {self.top}/asked; exit {build}')
        with unittest.mock.patch.object(gpu_check, "TOP", self.top), contextlib.redirect_stdout(io.StringIO()), \
                unittest.mock.patch.dict(os.environ, {"SPILLWAY_SKIP_SETUP": ""}):
            gpu_check.build(groups)
        return (self.top / "asked").read_text()

    def test_packages_that_cannot_be_installed_are_no_end(self):
        for setup in (0, 1):  # once is enough, whatever came of it
            self.assertEqual(self.build(setup, 0, ["steps"]), "1 cuda-release spillway\n")
        self.assertEqual(self.build(1, 0, ["steps", "ops"]), "1 cuda-release\n")

    def test_a_build_that_fails_says_what_else_there_is(self):
        with self.assertRaisesRegex(SystemExit, "--pack FILE on another machine"):
            self.build(1, 1, ["ops"])

    def test_setup_that_is_told_to_skip_installs_nothing_on_any_system(self):
        self.script("bin/dpkg-query", "exit 1")  # nothing is installed
        for name in ("apt-get", "sudo"):
            self.script(f"bin/{name}", f"touch {self.top}/{name}-ran; exit 1")
        version = subprocess.run([HERE / "third_party", "--list"], capture_output=True, text=True, check=True).stdout.split()[3]
        (self.top / ".cache/spillway/third_party" / pathlib.Path(version).name).mkdir(parents=True)
        env = os.environ | {"PATH": f"{self.top}/bin:{os.environ['PATH']}", "HOME": str(self.top), "SPILLWAY_SKIP_SETUP": "1"}
        done = subprocess.run([HERE / "setup", "build"], env=env, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("packages skipped", done.stdout)
        self.assertEqual(list(self.top.glob("*-ran")), [])


class Packing(unittest.TestCase):
    """What is packed comes back as it was, once for programs that repeat each other."""

    def test_a_group_takes_its_programs_alone(self):
        names = {name: None for name in ("spillway", "linear_cuda_bench", "prefill_bench", "row_ops_cuda_test", "transfer_cuda_bench")}
        self.assertEqual(set(gpu_check.needed(names, ["ops"])), {"row_ops_cuda_test"})
        self.assertEqual(set(gpu_check.needed(names, ["steps", "transfers"])), {"spillway", "transfer_cuda_bench"})
        self.assertEqual(set(gpu_check.needed(names, list(gpu_check.GROUPS))), set(names))

    def test_an_archive_is_unpacked_as_it_was_packed(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            top = pathlib.Path(folder)
            same = random.Random(1).randbytes(200_000)
            built = {}
            for name in ("spillway", "a_bench", "b_bench"):
                built[name] = top / name
                built[name].write_bytes(same)
                built[name].chmod(0o755)
            (top / "strip").write_text("#!/bin/sh\n")
            (top / "strip").chmod(0o755)
            environment = {"PATH": f"{top}:{os.environ['PATH']}"}
            patches = (unittest.mock.patch.object(gpu_check, "programs", lambda: built), unittest.mock.patch.object(gpu_check, "TOP", top),
                       unittest.mock.patch.dict(os.environ, environment), unittest.mock.patch.dict(gpu_check.gpu_rows.PROGRAMS, {"steps": ".*"}))
            with contextlib.ExitStack() as stack:
                for patch in patches:
                    stack.enter_context(patch)
                gpu_check.pack(top / "packed.xz", ["steps"])
                self.assertLess((top / "packed.xz").stat().st_size, 210_000)
                unpacked = gpu_check.unpack(top / "packed.xz")
                self.assertEqual(unpacked, gpu_check.unpack(top / "packed.xz"))
                for name in built:
                    self.assertEqual((unpacked / name).read_bytes(), same)
                    self.assertTrue(os.access(unpacked / name, os.X_OK))


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

    def test_answers_may_part_where_two_tokens_are_near_to_each_other(self):
        rows = gpu_check.gpu_rows
        gpu = {"answers": [{"tokens": [1, 2, 3]}, {"tokens": [1, 2]}]}
        cpu = {"answers": [{"tokens": [1, 5, 9], "margins": [2, 0.4, 3]}, {"tokens": [1, 2], "margins": [2, 3]}]}
        self.assertEqual((rows.differing(gpu, cpu), rows.far_apart(gpu, cpu)), (1, 0))
        for margins in ([2, 0.6, 3], [2, None, 3], []):
            cpu["answers"][0]["margins"] = margins
            self.assertEqual(rows.far_apart(gpu, cpu), 1, margins)
        cpu["answers"][1]["tokens"] = [1, 2, 3]  # goes on where the other ends
        self.assertEqual(rows.far_apart(gpu, cpu), 2)

    def test_device_memory_leaves_its_share_for_kv(self):
        # 128k tokens wait in 2 GiB of FP32 rows.
        asked = engine_rows.device_memory(2 << 30, 131072)[-1]
        self.assertGreater(asked, (4 << 30) + (256 << 20))
        self.assertLess(asked, (4 << 30) + (512 << 20))


class FakeMachine:
    """Answers every run of `spillway bench --runs` with one result a test, of the same speed."""

    windows = {"count": 9, "ts": {"p10": 90.0, "p50": 100.0, "p90": 110.0}, "step_ms": {"p10": 18.0, "p50": 20.0, "p90": 22.0}}

    def __init__(self, fails=()):
        self.programs, self.traces, self.fails = {}, pathlib.Path("traces"), fails
        self.asked = []  # options of each run

    def host_memory(self, wanted):
        return wanted

    def lines(self, _name, *arguments, timeout):
        path = arguments[arguments.index("--runs") + 1]
        for number, line in enumerate(pathlib.Path(path).read_text().splitlines()):
            words = line.split()
            options = dict(zip(words, words[1:]))
            self.asked.append(options)
            if options["--preset"] in self.fails:
                continue
            tests = [(int(p), 0) for p in options["-p"].split(",") if p != "0"] + [(0, int(n)) for n in options["-n"].split(",") if n != "0"]
            if "--pg" in options:
                tests.append(tuple(int(n) for n in options["--pg"].split(",")))
            for prompt, generated in tests:
                sizes = dict.fromkeys(("device_bytes", "activation_bytes", "workspace_bytes", "staging_bytes", "weights_bytes", "runtime_bytes"), 1)
                yield json.dumps({"run": number, "n_prompt": prompt, "n_gen": generated, "n_depth": int(options.get("-d", 0)),
                                  "n_streams": int(options.get("--streams", 1)), "samples_ns": [1e9], "samples_ts": [100.0], "avg_ts": 100.0,
                                  "decode_ts": 100.0, "decode_rows": 2.0, "decode_windows": self.windows, "ttft_ms": 10.0, "tbt_ms": 1.0, "ready_s": 1.0, "gpu_bytes_taken": 2,
                                  "requests": [[i, i, i + 1, i + 2] for i in range(int(options.get("--streams", 1)))],
                                  "kv": {"pages_missed": 1, "pages_selected": 10, "bytes_gathered": 9000, "load_us": 1, "device_bytes_peak": 1},
                                  "sizes": sizes})


class EngineRows(unittest.TestCase):
    """Rows come of what runs print, and of runs that print nothing."""

    def test_every_group_makes_its_rows(self):
        for name, group in engine_rows.GROUPS.items():
            if name == "ready":
                continue  # writes 16 GB
            rows = list(group(FakeMachine()))
            self.assertGreater(len(rows), 0, name)
            self.assertEqual(len({r["what"] for r in rows}), len(rows), "rows are merged by their name")
            self.assertNotIn("failed", [r["measured"] for r in rows], name)

    def test_what_failed_is_a_row_that_is_not_met(self):
        for name in ("capped", "whole", "arrivals", "resident", "long-prompts", "serving"):
            rows = list(engine_rows.GROUPS[name](FakeMachine(fails=("full", "sparse"))))
            self.assertIn("failed", [r["measured"] for r in rows], name)
            self.assertFalse(all(r["ok"] for r in rows), name)

    def test_a_rate_of_decoding_is_the_mean_and_shows_its_windows(self):
        class Alternates(FakeMachine):
            """`full` and `sparse` are fast in most windows and slow in those in which rows select."""

            def lines(self, *arguments, timeout):
                for line in super().lines(*arguments, timeout=timeout):
                    test = json.loads(line)
                    if self.asked[test["run"]]["--preset"] in ("full", "sparse"):
                        test |= {"decode_ts": 150.0, "decode_windows": self.windows | {"ts": {"p10": 40.0, "p50": 700.0, "p90": 710.0}}}
                    yield json.dumps(test)

        rows = {r["what"]: r for r in engine_rows.capped(Alternates())}
        self.assertFalse(any(r["ok"] for r in rows.values()), rows)
        one = rows["16 GiB for KV, 24 requests of 32768, decode of full / dense, reuse 4"]
        self.assertIn("150 tokens/s (windows' p10 40, p50 700, p90 710) in steps of 2.0 rows against 100 tokens/s (windows' p10 90, p50 100, p90 110) "
                      "in steps of 2.0 rows: 1.50x", one["measured"])
        seven = next(r for r in engine_rows.resident(Alternates()) if r["what"].startswith("7 sequences"))
        self.assertIn(f": {150 / 183:.2f}x", seven["measured"])
        self.assertEqual(engine_rows.step_s({"decode_rows": 2.0, "decode_ts": 100.0}), 0.02)

    def test_whole_requests_say_their_median_beside_their_mean(self):
        for name in ("whole", "arrivals-8"):
            first = next(iter(engine_rows.GROUPS[name](FakeMachine())))
            self.assertRegex(first["measured"], r"median 0\.0")

    def test_batches_where_everything_fits_are_whole_requests(self):
        class Slower(FakeMachine):
            """Repeats that differ, and a `full` that takes longer in most of them."""

            def lines(self, *arguments, timeout):
                for line in super().lines(*arguments, timeout=timeout):
                    test = json.loads(line)
                    slow = self.asked[test["run"]]["--preset"] == "full"
                    yield json.dumps(test | {"samples_ns": [9e9, 1.1e9 if slow else 1e9, 1.1e9 if slow else 1e9]})

        machine = Slower()
        rows = list(engine_rows.GROUPS["serving"](machine))
        for options in machine.asked:
            self.assertEqual((options["-p"], options["-n"], options["--pg"]), ("0", "0", "1024,256"))
            self.assertGreaterEqual(int(options["-r"]), 3)
        self.assertEqual([options["--preset"] for options in machine.asked], ["dense", "full", "dense"] * 2)
        self.assertEqual([(r["ok"], r["measured"]) for r in rows], [(False, "233 against 256 tokens/s: 0.909x; median of 3"),
                                                                    (False, "14895 against 16384 tokens/s: 0.909x; median of 3")])

    def test_the_long_prompt_in_little_memory_decodes_through_tiers(self):
        machine = FakeMachine()
        list(engine_rows.GROUPS["long-prompts"](machine))
        small = machine.asked[-1]
        self.assertEqual((small["--preset"], small["--pg"]), ("full", "130816,32"))
        self.assertLessEqual(130816 + 32 + 2, int(small["--max-model-len"]))
        gib, mib = 1 << 30, 1 << 20
        test = {"n_gen": 32, "ttft_ms": 11000.0, "tbt_ms": 5.5, "gpu_bytes_taken": 20 * gib, "sizes": {
            "device_bytes": 5 * gib, "weights_bytes": 15 * gib - 60 * mib, "activation_bytes": 2 * gib, "workspace_bytes": gib, "staging_bytes": gib // 2},
            "kv": {"pages_missed": 9, "pages_selected": 90, "bytes_gathered": 0, "load_us": 0, "device_bytes_peak": 5 * gib + 132096}}
        fine = engine_rows.small_row(test)
        self.assertTrue(fine["ok"])
        self.assertEqual(fine["measured"], "11.00 s, then 32 tokens in 5.50 ms each, 10.0 % of the pages missed; 1.50 GiB for KV; "
                         "beside the weights 5.00 GiB planned, 5.06 GiB taken, the rest 60 MiB")
        for worse in ({"kv": test["kv"] | {"pages_missed": 0}}, {"kv": test["kv"] | {"device_bytes_peak": 5 * gib + 2 * mib}},
                      {"gpu_bytes_taken": 20 * gib + 200 * mib}, {"sizes": test["sizes"] | {"activation_bytes": gib}}):
            self.assertFalse(engine_rows.small_row(test | worse)["ok"], worse)

    def test_steps_are_medians_of_three_repeats(self):
        class Uneven(FakeMachine):
            def lines(self, *arguments, timeout):
                for line in super().lines(*arguments, timeout=timeout):
                    yield json.dumps(json.loads(line) | {"samples_ns": [4e9, 0.128e9, 0.064e9], "avg_ts": 1.0})

        machine = Uneven()
        rows = list(engine_rows.GROUPS["steps"](machine))
        self.assertEqual({options["-r"] for options in machine.asked}, {"3"})
        self.assertEqual([r["measured"] for r in rows][:2], ["0.128 against 0.206 s, median of 3", "2.00 against 5.3 ms, median of 3 times 64 steps"])
        self.assertEqual(len(rows), 6)

    def test_the_weights_file_is_as_long_as_its_header_says(self):
        size = 0
        for _, shape in engine_rows.tensors_8b():
            elements = 2
            for extent in shape:
                elements *= extent
            size += elements
        self.assertEqual(size, 2 * 8_030_261_248)


FAKE_SMI = """#!/usr/bin/env python3
import sys, time
assert "-l" in sys.argv, sys.argv
for watts in (90, 600.5, 640.5, 650.5):
    # Nothing is flushed.
    print(f"{345 if watts == 90 else 1980}, {watts}, [N/A], {0 if watts == 90 else 100}")
    time.sleep(0.05)
while True:
    time.sleep(60)
"""


class Needles(unittest.TestCase):
    """Rows of needle sets, from answers that are made up here."""

    def rows(self, answers, least=100):
        """By name. `answers`: by preset, what is not as in good ones; None: failed."""
        asked = self.asked = []

        def ask(_machine, name, *options):
            options = dict(zip(options[::2], options[1::2]))
            asked.append((name, options))
            kv = {"pages_missed": 9, "pages_selected": 90, "pages_saved": 5, "selections": 7}
            good = {"answers": [{"tokens": [1, 2], "margins": [2, 3]}], "right": 86, "kv": kv}
            changed = answers[options["--preset"]]
            return {} if changed is None else good | changed

        rows = gpu_check.gpu_rows
        with unittest.mock.patch.object(rows, "ask", ask), unittest.mock.patch.object(rows, "least_memory", lambda *_: least):
            return {r["what"]: r for r in rows.needles(None)}

    def test_good_answers_meet_every_row(self):
        rows = self.rows({"sparse": {}, "full": {}, "dense": {}})
        self.assertEqual([what for what, r in rows.items() if not r["ok"]], [])
        self.assertEqual(len(rows), 12)

    def test_the_longest_set_has_the_tokens_of_resident_selection(self):
        good = {"sparse": {}, "full": {}, "dense": {}}
        self.rows(good)
        sparse, full = ([options for name, options in self.asked if "128k" in name and options["--preset"] == preset] for preset in ("sparse", "full"))
        self.assertEqual((len(sparse), len(full)), (1, 1))
        self.assertEqual(sparse[0].items() - full[0].items(), {("--preset", "sparse")}, "the same options but for tiers")
        rows = self.rows(good | {"full": {"answers": [{"tokens": [1, 3]}]}})
        self.assertFalse(rows["128k set, budget 2048, through tiers"]["ok"])
        self.assertTrue(rows["128k set, budget 2048, through tiers, right answers"]["ok"])

    def test_selection_may_lose_one_in_a_hundred_and_one(self):
        for right, ok in ((85, True), (84, False)):
            rows = self.rows({"sparse": {"right": right}, "full": {}, "dense": {}})
            self.assertEqual(rows["2k set, budget 1024, right answers"]["ok"], ok)
        counted_by_the_host = {"pages_missed": 0, "pages_selected": 0, "pages_saved": 0, "selections": 7}
        rows = self.rows({"sparse": {"kv": counted_by_the_host}, "full": {}, "dense": {}})
        self.assertFalse(rows["2k set, budget 1024, right answers"]["ok"])

    def test_sets_that_fail_are_not_met(self):
        rows = self.rows({"sparse": None, "full": {}, "dense": {}})
        failed = [what for what, r in rows.items() if r["measured"] == "failed"]
        self.assertEqual(len(failed), 7, failed)
        self.assertFalse(any(rows[what]["ok"] for what in failed))


class Clocks(unittest.TestCase):
    """What nvidia-smi says every second while a group runs ends in its rows; where it says nothing, rows have nothing."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = pathlib.Path(folder.name)
        self.samplers = samplers = []

        class Kept(gpu_check.gpu_clocks.Sampler):
            def __init__(self):
                super().__init__()
                samplers.append(self)

        for patch in (unittest.mock.patch.dict(os.environ, {"PATH": f"{self.top}:{os.environ['PATH']}", "PYTHONUNBUFFERED": ""}),
                      unittest.mock.patch.object(gpu_check.gpu_clocks, "Sampler", Kept)):
            patch.start()
            self.addCleanup(patch.stop)

    def run_group(self, group):
        machine = unittest.mock.Mock(gpu="X", commit="aaa")
        said = io.StringIO()
        with unittest.mock.patch.dict(gpu_check.GROUPS, {"ops": group}), contextlib.redirect_stdout(said):
            return gpu_check.run_group(machine, "ops", self.top / "2026-01-02-x.json")["groups"]["ops"], said.getvalue()

    def fake(self, text):
        (self.top / "nvidia-smi").write_text(text)
        (self.top / "nvidia-smi").chmod(0o755)

    def test_rows_have_the_medians_of_the_seconds_in_which_the_gpu_was_busy(self):
        self.fake(FAKE_SMI)

        def group(_machine):
            """x"""
            late = time.time() + 60
            while len(self.samplers[-1].samples) < 4 and time.time() < late:
                time.sleep(0.01)
            yield row("a", "", "1", True)
            yield row("b", "", "1", True)

        rows, said = self.run_group(group)
        self.assertEqual([r["gpu"] for r in rows], [{"sm_mhz": 1980.0, "watts": 640.5, "samples": 3}] * 2, "rows that end together share them")
        self.assertIn("1980 MHz, 640 W (medians of 3 seconds", said)

    def test_a_gpu_that_does_not_tell_leaves_rows_as_they_are(self):
        for text in ("#!/bin/sh\nexit 9\n", "#!/bin/sh\necho 'No devices were found'\n", "not a program"):
            self.fake(text)

            def group(_machine):
                """x"""
                if self.samplers[-1].process:
                    self.samplers[-1].reader.join(60)
                yield row("a", "", "1", True)

            rows, said = self.run_group(group)
            self.assertNotIn("gpu", rows[0], text)
            self.assertNotIn("MHz", said)


class DenseQueue(unittest.TestCase):
    def test_delays_of_a_queue_by_hand(self):
        server = queue.Server(prompt_s=1.0, chunks=2, step_s=[0.5])
        # Each takes 1 s and three steps: 2.5 s.
        self.assertEqual(queue.delays(server, [0.0, 1.0, 10.0], 4), [0.0, 1.5, 0.0])
        server.step_s = [0.5, 0.5]
        # The second prompt begins behind the first step of the first, which gets two tokens beside it and is done.
        for waited, expected in zip(queue.delays(server, [0.0, 1.2, 1.2], 4), [0.0, 0.3, 1.3], strict=True):
            self.assertAlmostEqual(waited, expected)

    def test_steps_of_fewer_rows_are_shorter(self):
        self.assertEqual(queue.steps_between(3, 1.0, 2.0), [1.0, 1.5, 2.0])
        self.assertEqual(queue.steps_between(1, 1.0, 1.0), [1.0])
        # The second ends its three steps alone: 0.5 s each, 1 s while both run.
        server = queue.Server(prompt_s=1.0, chunks=1, step_s=[0.5, 1.0])
        self.assertEqual(queue.delays(server, [0.0, 0.0, 0.0], 4), [0.0, 1.0, 4.0])

    def test_the_rate_is_one_at_which_requests_wait_as_long_as_they_may(self):
        draw = random.Random(5)
        at, pattern = 0.0, []
        for _ in range(48):
            pattern.append(at)
            at += draw.expovariate(1.0)
        server = queue.Server(prompt_s=1.0, chunks=16, step_s=[0.008, 0.009, 0.01])
        rate = queue.sustained_rate(server, pattern, 1024)
        self.assertAlmostEqual(queue.mean_delay(server, rate, pattern, 1024), 2.0, delta=0.1)
        self.assertGreater(queue.mean_delay(server, 1.3 * rate, pattern, 1024), 3.0)


if __name__ == "__main__":
    unittest.main()
