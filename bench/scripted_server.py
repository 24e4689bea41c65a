"""A server of streams whose times are known: what load generators are checked against."""

import http.server
import json
import socket
import threading
import time


class Scripted(http.server.ThreadingHTTPServer):
    """`with Scripted(...) as server:` answers each request with a token after `first_s` and every `gap_s` after it, `tokens` in all, however
    many there are at once. `noted` has (time of the request, times of its chunks) in order of arrival. Its metrics say that each
    request waited `wait_s` until it was scheduled."""
    request_queue_size = 128

    def __init__(self, first_s, gap_s, tokens, wait_s=0.0):
        super().__init__(("127.0.0.1", 0), Handler)
        self.first_s, self.gap_s, self.tokens, self.wait_s = first_s, gap_s, tokens, wait_s
        self.noted, self.lock = [], threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *_):
        pass

    def whole(self, text, kind="application/json"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        if self.path == "/metrics":
            count = len(self.server.noted)
            return self.whole(f"vllm:request_queue_time_seconds_sum {count * self.server.wait_s}\n"
                              f"vllm:request_queue_time_seconds_count {count}\n", "text/plain")
        return self.whole(json.dumps({"data": [{"id": "scripted", "meta": {"n_vocab": 1000}}]}))

    def event(self, fields):
        data = f"data: {fields if isinstance(fields, str) else json.dumps(fields)}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/v1/completions":
            return self.whole("{}")
        got, sent = time.monotonic(), []
        with self.server.lock:
            self.server.noted.append((got, sent))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        head = {"id": "1", "object": "text_completion", "created": int(time.time()), "model": "scripted"}
        for i in range(self.server.tokens):
            time.sleep(max(0, got + self.server.first_s + i * self.server.gap_s - time.monotonic()))
            sent.append(time.monotonic())
            reason = "length" if i == self.server.tokens - 1 else None
            self.event({**head, "choices": [{"index": 0, "text": " a", "logprobs": None, "finish_reason": reason}]})
        usage = {"prompt_tokens": 5, "completion_tokens": self.server.tokens, "total_tokens": 5 + self.server.tokens}
        self.event({**head, "choices": [], "usage": usage})
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")
