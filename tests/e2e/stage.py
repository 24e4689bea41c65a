"""A stage before a running server: answers chats by a script, piece by piece, and hands everything else on.

The page is loaded from the stage, so that it talks to it as to the server. What models draw and how fast they are decides nothing.
"""

import http.client
import http.server
import json
import select
import threading


def event(delta, finish=None):
    """One chunk of a streamed chat answer, as bytes."""
    choice = {"index": 0, "delta": delta}
    if finish:
        choice["finish_reason"] = finish
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def ending(tokens):
    """What a whole answer ends with."""
    usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}}
    return event({}, finish="stop") + b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n"


class Stage:
    """`with Stage(server) as stage:`; then stage.script = a function that yields the bytes of an answer. It is told of by:
    `sent`: bodies of the chats that were asked; `left`: set when the client went away before an answer was whole."""

    def __init__(self, server):
        self.script = lambda: iter([ending(0)])
        self.sent, self.left = [], threading.Event()
        stage = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                status, headers, body = server.request("GET", self.path)
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() in ("content-type", "content-security-policy", "cache-control"):
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body.encode())

            def do_POST(self):
                stage.sent.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                for piece in stage.script():
                    # A client that waits for an answer sends nothing: what can be read is its end.
                    if select.select([self.connection], [], [], 0)[0]:
                        raise ConnectionResetError
                    self.wfile.write(piece)

            def handle(self):
                try:
                    super().handle()
                except (ConnectionError, http.client.HTTPException):
                    if self.command == "POST":
                        stage.left.set()

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.05,))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


class Prompter:
    """A script whose pieces come when the test says so: `say(bytes)` adds one, `end()` ends the answer. While there is nothing to
    say the script yields nothing ten times a second, so that a client that leaves is noticed."""

    def __init__(self):
        self.pieces, self.changed, self.ended = [], threading.Condition(), False

    def say(self, piece):
        with self.changed:
            self.pieces.append(piece)
            self.changed.notify()

    def end(self):
        with self.changed:
            self.ended = True
            self.changed.notify()

    def __call__(self):
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.pieces or self.ended, timeout=0.1)
                said, self.pieces = b"".join(self.pieces), []
                done = self.ended
            yield said
            if done:
                return
