#!/usr/bin/env python3
"""What an operator sees of a running server: metrics that Prometheus takes and the dashboard asks for, logs, a config file.

One server with a host and a disk tier answers a few requests; its own output is then read as Prometheus, Grafana and a log
collector read it.
"""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import serving

TRACE = "0af7651916cd43dd8448eb211c80319c"
# vLLM's names, which promtool would have otherwise: a colon is for recording rules, _total for counters.
KNOWN_LINT = re.compile(r"^(vllm|spillway):\w+ metric names should not contain ':'$"
                        r"|^vllm:iteration_tokens_total non-counter metrics should not have \"_total\" suffix$"
                        r"|^vllm:\w+_info non-")


class Operations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        config = cls.folder / "spillway.toml"
        config.write_text(f"model = \"{serving.LONGNEEDLE}\"  # by the file\n"
                          "preset = \"full\"\nmax-model-len = 4096\nmax-num-seqs = 4\nbudget = 512\n"
                          "kv-offloading-size = 0.25\ndevice-memory = \"160MiB\"\n"
                          f"disk-path = \"{cls.folder}\"\ndisk-memory = \"64MiB\"\n"
                          "kv-cache-metrics = true\nkv-cache-metrics-sample = 1.0\n"
                          "log-format = \"json\"\nport = 1\nserved-model-name = \"needle\"\n")
        cls.server = cls.enterClassContext(serving.Server(None, "--config", str(config)))
        prompt = " ".join(f"The code of room {i} is {i * 7919 % 10007}." for i in range(60))
        cls.idle = cls.server.request("GET", "/metrics")[2]
        for headers in ({"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "x-request-id": "first"}, {}):
            cls.answer = cls.server.request("POST", "/v1/completions",
                                            {"model": "needle", "prompt": prompt, "max_tokens": 24, "temperature": 0},
                                            headers)
            assert cls.answer[0] == 200, cls.answer
        cls.server.request("POST", "/v1/completions", {"model": "needle", "prompt": 5})
        cls.page = cls.server.request("GET", "/metrics")[2]

    def value(self, name, labels=""):
        found = re.findall(rf"^{re.escape(name)}{{[^}}]*{re.escape(labels)}[^}}]*}} (\S+)$", self.page, re.M)
        self.assertTrue(found, f"no {name} with {labels}")
        return sum(map(float, found))

    def lines(self):
        return [json.loads(line) for line in self.server.output().splitlines() if line.startswith('{"time"')]

    @unittest.skipIf(shutil.which("promtool") is None, "needs promtool: Debian's package prometheus")
    def test_prometheus_takes_the_page(self):
        done = subprocess.run(["promtool", "check", "metrics"], input=self.page, capture_output=True, text=True)
        self.assertIn(done.returncode, (0, 3), done.stderr)  # 3: lint
        for line in (done.stdout + done.stderr).splitlines():
            self.assertRegex(line, KNOWN_LINT)

    def test_every_metric_of_the_dashboard_is_there(self):
        dashboard = json.loads((serving.TOP / "packaging/grafana-dashboard.json").read_text())
        expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
        asked = set(re.findall(r"\b(?:(?:vllm|spillway):\w+|http_request\w+)", " ".join(expressions)))
        self.assertGreater(len(asked), 40)
        for name in sorted(asked):
            self.assertRegex(self.page, rf"(?m)^{name}{{", "the dashboard asks for it")
        for key, value in set(re.findall(r'\b(tier|kind|reason|state|direction)=\\?"(\w+)\\?"', " ".join(expressions))):
            self.assertRegex(self.page, rf'{key}="{value}"')
        places = [panel["gridPos"] for panel in dashboard["panels"]]
        self.assertEqual(len({(place["x"], place["y"]) for place in places}), len(places), "panels do not overlap")

    def test_the_counts_are_those_of_the_requests(self):
        self.assertEqual(self.value("vllm:request_success_total"), 2)
        self.assertEqual(self.value("vllm:generation_tokens_total"), 48)
        self.assertEqual(self.value("vllm:request_params_n_count"), 2)
        self.assertEqual(self.value("http_requests_total", 'handler="/v1/completions",status="200"'), 2)
        self.assertEqual(self.value("http_requests_total", 'handler="/v1/completions",status="400"'), 1)
        self.assertEqual(self.value("vllm:kv_cache_usage_perc"), 0)
        self.assertIn("vllm:kv_cache_usage_perc{", self.idle)
        self.assertEqual(self.value("vllm:num_requests_running"), 0)
        self.assertGreater(self.value("vllm:prompt_tokens_by_source_total", 'source="local_cache_hit"'), 500)
        self.assertEqual(self.value("vllm:prompt_tokens_by_source_total"), self.value("vllm:prompt_tokens_total"))
        # Two prompts and their decode steps, none without a token.
        self.assertGreater(self.value("vllm:iteration_tokens_total_count"), 2 * 23)
        self.assertEqual(self.value("vllm:iteration_tokens_total_bucket", 'le="+Inf"'),
                         self.value("vllm:iteration_tokens_total_count"))
        self.assertGreater(self.value("spillway:page_hits_total"), 0)
        for name in ("lifetime", "idle_before_evict", "reuse_gap"):
            self.assertEqual(self.value(f"vllm:kv_block_{name}_seconds_count"), 0, "nothing was evicted")
        blocks = sum(self.value("spillway:tier_blocks", f'tier="{tier}"') for tier in ("host", "disk"))
        self.assertGreater(self.value("spillway:tier_blocks", 'tier="disk"'), 0)
        self.assertIn(f'num_gpu_blocks="{blocks:.0f}"', self.page)

    def test_each_request_has_a_line(self):
        lines = [line for line in self.lines() if line["message"] == "request"]
        self.assertEqual([line["status"] for line in lines], [200, 200, 400])
        first, second, refused = lines
        self.assertEqual((first["request_id"], first["trace_id"]), ("first", TRACE))
        self.assertEqual(second["request_id"], self.answer[1]["x-request-id"])
        self.assertNotIn("trace_id", second)
        self.assertEqual(first["prompt_tokens"], json.loads(self.answer[2])["usage"]["prompt_tokens"])
        self.assertEqual((first["cached_tokens"], first["generated_tokens"]), (0, 24))
        self.assertGreater(second["cached_tokens"], 500)
        self.assertGreater(first["prefill_ms"], 0)
        self.assertGreater(first["decode_ms"], 0)
        self.assertLess(first["queue_ms"], first["total_ms"])
        self.assertGreaterEqual(first["pages_selected"], first["pages_from_host"])
        self.assertNotIn("prompt_tokens", refused)
        self.assertNotIn("room 3", self.server.output(), "no text of a prompt is in the log")

    def test_the_config_file_was_read_and_its_spellings_told(self):
        told = [line["message"] for line in self.lines() if "vLLM's options" in line["message"]]
        self.assertEqual(told, ["vLLM's options: --kv-offloading-size 0.25 is --host-memory 0.25GiB"])
        for name in ("time", "level", "message"):
            self.assertTrue(all(name in line for line in self.lines()))


if __name__ == "__main__":
    unittest.main()
