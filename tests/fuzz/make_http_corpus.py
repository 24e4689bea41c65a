#!/usr/bin/env python3
"""Writes corpus/http: requests as http_fuzz knows them (/a echoes, /s streams), whole and damaged in instructive places.

Run from anywhere. Inputs that a fuzzer found are added to the folder by hand, named after what broke.
"""

import pathlib

FOLDER = pathlib.Path(__file__).parent / "corpus" / "http"
CHUNKED = b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"

REQUESTS = {
    "get": b"GET /a?q HTTP/1.1\r\nHost: h\r\n\r\n",
    "get_old": b"GET /a HTTP/1.0\r\n\r\n",
    "get_old_keep": b"GET /s HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "head": b"HEAD /a HTTP/1.1\r\nHost: h\r\n\r\nHEAD /s HTTP/1.1\r\nHost: h\r\n\r\n",
    "absolute": b"GET http://user@h:1/a?x=http:// HTTP/1.1\r\nHost: other\r\n\r\n",
    "absolute_bare": b"GET http://h HTTP/1.1\r\nHost: h\r\n\r\n",
    "no_host": b"GET /a HTTP/1.1\r\n\r\n",
    "post": b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
    "post_none": b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
    "stream": b"GET /s HTTP/1.1\r\nHost: h\r\n\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n",
    "pipelined": b"GET /a?1 HTTP/1.1\r\nHost: h\r\n\r\nPOST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nxGET /s HTTP/1.1\r\nHost: h\r\n\r\nGET /none HTTP/1.1\r\nHost: h\r\n\r\n",
    "expect": b"POST /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab",
    "chunks": CHUNKED + b"3\r\nabc\r\n1;ext=\"v\"\r\nd\r\n0\r\nTrailer: t\r\n\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n",
    "chunk_lies": CHUNKED + b"5\r\nabc\r\n0\r\n\r\n",
    "chunk_huge": CHUNKED + b"ffffffffffffffff\r\nabc",
    "chunk_bytes": CHUNKED + b"1\r\nx\r\n" * 20 + b"0\r\n\r\n",
    "both_lengths": b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two_lengths": b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nabcde",
    "list_of_lengths": b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5, 5\r\n\r\nabcde",
    "identity": b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\n\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n",
    "over_body": b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2049\r\n\r\n" + b"b" * 2049,
    "full_body": b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2048\r\n\r\n" + b"b" * 2048,
    "over_head": b"GET /a HTTP/1.1\r\nHost: h\r\nx: " + b"h" * 1100 + b"\r\n\r\n",
    "folded": b"GET /a HTTP/1.1\r\nHost: h\r\nx: a\r\n  b\r\n\r\n",
    "refused": b"POST /a HTTP/1.1\r\nHost: h\r\nRefuse: yes\r\nContent-Length: 3\r\n\r\nabcGET /a HTTP/1.1\r\nHost: h\r\n\r\n",
    "refused_kept": b"GET /a HTTP/1.1\r\nHost: h\r\nRefuse: yes\r\n\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n",
    "methods": b"PUT /a HTTP/1.1\r\nHost: h\r\n\r\nOPTIONS * HTTP/1.1\r\nHost: h\r\n\r\nCONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n",
    "line_feeds": b"GET /a HTTP/1.1\nx: y\n\n",
    "nul": b"GET /a HTTP/1.1\r\nHost: h\r\nx: a\x00b\r\n\r\n",
    "high_bytes": b"GET /\xff\xc0 HTTP/1.1\r\nHost: h\r\nx: \xff\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "cut_head": b"GET /a HTTP/1.1\r\nHost: h\r\n",
    "cut_body": b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc",
    "empty_lines": b"\r\n\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n",
    "upgrade": b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "close": b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n",
}


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, data in REQUESTS.items():
        (FOLDER / name).write_bytes(data)


if __name__ == "__main__":
    main()
