#!/usr/bin/env python3
"""A prompt that takes long, behind Debian's nginx with a plain proxy_pass.

nginx gives a server up that says nothing for proxy_read_timeout; it speaks HTTP/1.0 to it and would collect what it says. So
the pings must begin in time, must pass at once, and the answer must follow. The scripted server says nothing for longer than
nginx waits; nginx's times are shortened with it (bench/long_prefill has them at full length).
"""

import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import serving

SCRIPTED = os.environ.get("SPILLWAY_SCRIPTED_SERVER", str(serving.TOP / "build/release/tests/e2e/scripted_server"))
NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")

CONFIG = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  {more}
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{behind}; }} }}
}}
"""

BODIES = {
    "/v1/completions": {"prompt": "a", "max_tokens": 5, "stream": True},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "stream": True},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "stream": True},
    "/v1/responses": {"input": "a", "max_output_tokens": 5, "stream": True},
}


class Behind:
    """The scripted server, and nginx in front of it: `port` is nginx's, `direct` the server's."""

    def __init__(self, prefill_s, ping_s, read_timeout_s=None):
        self.port, self.direct = serving.free_port(), serving.free_port()
        self.folder = tempfile.TemporaryDirectory()
        more = f"proxy_read_timeout {read_timeout_s}s;" if read_timeout_s else ""
        config = pathlib.Path(self.folder.name, "nginx.conf")
        config.write_text(CONFIG.format(folder=self.folder.name, port=self.port, behind=self.direct, more=more))
        self.processes = [
            subprocess.Popen([SCRIPTED, str(self.direct), str(int(prefill_s * 1000)), str(int(ping_s * 1000))]),
            subprocess.Popen([NGINX, "-e", f"{self.folder.name}/error.log", "-c", str(config)])]

    def __enter__(self):
        for _ in range(200):
            try:
                if self.get("/ready") == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.05)
        self.__exit__(None, None, None)
        raise AssertionError("nginx or the server did not come up")

    def __exit__(self, *_):
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(timeout=30)
        self.folder.cleanup()

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    def stream(self, path, port=None):
        """(status, headers, [(seconds since the request, line)])."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=300)
        began = time.monotonic()
        connection.request("POST", path, json.dumps(BODIES[path]), {"Content-Type": "application/json"})
        response = connection.getresponse()
        lines = []
        while line := response.readline():
            if line.strip():
                lines.append((time.monotonic() - began, line.decode().strip()))
        connection.close()
        return response.status, dict(response.getheaders()), lines


def check(test, path, answer, prefill_s, ping_s):
    """Pings in time and while nothing else is said; then the answer."""
    status, headers, lines = answer
    test.assertEqual(status, 200, lines)
    test.assertTrue(headers["Content-Type"].startswith("text/event-stream"))
    is_ping = (lambda line: "ping" in line) if path == "/v1/messages" else (lambda line: line == ": ping")
    silent = [line for line in lines if is_ping(line[1])]
    said = [line for line in lines if not is_ping(line[1])]
    per_ping = 2 if path == "/v1/messages" else 1  # lines of one
    test.assertGreaterEqual(len(silent) // per_ping, int(prefill_s / ping_s) - 2)
    test.assertGreater(said[0][0], prefill_s * 0.9, "nothing but pings before the first token")
    # At least one ping came while the prompt was in work: nginx did not keep them back.
    test.assertLess(silent[0][0], prefill_s * 0.9)
    text = "".join(line for _, line in said)
    end = {"/v1/messages": "message_stop", "/v1/responses": "response.completed"}.get(path, "data: [DONE]")
    test.assertIn(end, text)
    test.assertIn("h", text)


@unittest.skipIf(NGINX is None, "needs nginx: tools/setup installs it")
@unittest.skipIf(not os.path.exists(SCRIPTED), "needs the target scripted_server")
class LongPrefill(unittest.TestCase):
    def test_pings_keep_the_way_open(self):
        with Behind(prefill_s=5, ping_s=0.5, read_timeout_s=2) as behind:
            for path in BODIES:
                with self.subTest(path):
                    check(self, path, behind.stream(path), 5, 0.5)

    def test_without_pings_nginx_gives_up(self):
        """What the pings are for: otherwise the test above would show nothing."""
        with Behind(prefill_s=5, ping_s=100, read_timeout_s=2) as behind:
            self.assertEqual(behind.stream("/v1/completions")[0], 504)

    def test_short_prompts_have_no_pings(self):
        with Behind(prefill_s=0.1, ping_s=10) as behind:
            status, headers, lines = behind.stream("/v1/completions", behind.direct)
            self.assertEqual((status, headers["X-Accel-Buffering"]), (200, "no"))
            self.assertTrue(all(line.startswith("data: ") for _, line in lines), lines)


if __name__ == "__main__":
    unittest.main()
