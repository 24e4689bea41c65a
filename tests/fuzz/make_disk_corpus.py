#!/usr/bin/env python3
"""Writes corpus/disk_records: changes to the disk tier's files as disk_records_fuzz reads them, each damage that docs/store.md speaks of.

Run from anywhere; needs only Python. Inputs that a fuzzer found are added to the folder by hand, named after what broke.
"""

import pathlib
import sqlite3
import struct
import tempfile

FOLDER = pathlib.Path(__file__).parent / "corpus" / "disk_records"
INDEX, LOG, PAGES, JOURNAL, SHM, OWNER, ASIDE_INDEX, ASIDE_PAGES = range(8)
CLOSED, RUNNING = b"\0", b"\1"
TRUNCATE = 8
STRIDE = 4096
# The fields of a record's header (src/store/disk_record.cc).
HEADER = {"checksum": 0, "magic": 16, "format": 24, "num_tokens": 28, "record_bytes": 32, "fingerprint": 40, "record": 56, "key": 64,
          "check": 72, "parent": 80, "generated": 88, "tokens": 96, "payload": 512}
IDENTITY = "schema 1, record format 1, payload 256, P 4, fuzz"
TABLES = ("CREATE TABLE identity (name TEXT PRIMARY KEY, value BLOB NOT NULL);"
          "CREATE TABLE records (record INTEGER PRIMARY KEY, key INTEGER NOT NULL, content INTEGER NOT NULL, parent INTEGER NOT NULL,"
          " generated INTEGER NOT NULL, used INTEGER NOT NULL, tokens BLOB NOT NULL);")
VIEW = ("CREATE VIEW records AS WITH RECURSIVE r(record) AS (SELECT 0 UNION ALL SELECT record + 0 FROM r) SELECT record, 0 AS key,"
        " 0 AS content, 0 AS parent, 0 AS generated, 0 AS used, zeroblob(16) AS tokens FROM r;")


def change(file, offset, data, truncate=False):
    return bytes([file | (TRUNCATE if truncate else 0)]) + struct.pack(">I", offset)[1:] + struct.pack(">H", len(data)) + data


def foreign_index(sql, identity=IDENTITY):
    """A whole index in small pages, instead of the tier's."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "index"
        db = sqlite3.connect(path)
        db.executescript(f"PRAGMA page_size=512; {sql}")
        db.execute("INSERT INTO identity VALUES ('identity', ?)", (identity,))
        db.commit()
        db.close()
        return CLOSED + change(INDEX, 0, path.read_bytes(), truncate=True)


def rows(*values):
    return TABLES + "INSERT INTO records VALUES " + ",".join(f"({v})" for v in values) + ";"


INPUTS = {
    "closed": CLOSED,
    "running": RUNNING,
    "no_index": CLOSED + change(INDEX, 0, b"", truncate=True),
    "no_pages": CLOSED + change(PAGES, 0, b"", truncate=True),
    "no_log": RUNNING + change(LOG, 0, b"", truncate=True),
    "pages_cut": CLOSED + change(PAGES, 2 * STRIDE + 700, b"", truncate=True),
    "index_cut": CLOSED + change(INDEX, 5000, b"", truncate=True),
    "log_cut": RUNNING + change(LOG, 9000, b"", truncate=True),
    "index_text": CLOSED + change(INDEX, 0, b"hello", truncate=True),
    "index_page_size": CLOSED + change(INDEX, 16, b"\x00\x01"),
    "index_page_count": CLOSED + change(INDEX, 28, b"\xff\xff\xff\xff"),
    "index_free_list": CLOSED + change(INDEX, 32, b"\0\0\0\2\0\0\0\xff"),
    "index_schema_page": CLOSED + change(INDEX, 100, bytes([5]) + bytes(20)),
    "index_tree": CLOSED + b"".join(change(INDEX, 4096 * page, b"\x05\0\0\0\x40") for page in (1, 2, 3)),
    "log_header": RUNNING + change(LOG, 0, bytes(32)),
    "log_frame": RUNNING + change(LOG, 32 + 4, b"\xff\xff\xff\xff"),
    "shm": RUNNING + change(SHM, 0, bytes(range(136)) * 4),
    "journal": CLOSED + change(JOURNAL, 0, bytes.fromhex("d9d505f920a163d7") + struct.pack(">IIIII", 1, 7, 1, 512, 512) + bytes(484)),
    "owner": CLOSED + change(OWNER, 0, b"0123456789abcdef" * 2),
    "owner_long": CLOSED + change(OWNER, 0, b"0" * 40),
    "aside_text": CLOSED + change(INDEX, 0, b"", truncate=True) + change(ASIDE_INDEX, 0, b"hello") + change(ASIDE_PAGES, 0, b"x" * 5000),
    "aside_and_own": CLOSED + change(ASIDE_INDEX, 0, b"hello"),
    "generations": CLOSED + change(PAGES, 0, b"\1") + change(PAGES, STRIDE + 600, b"x") + change(INDEX, 3 * 4096 + 4000, bytes(16)),
    "foreign_rows": foreign_index(rows("-1,0,0,0,0,1,zeroblob(16)", "99,0,0,0,0,1,zeroblob(16)", "3,0,0,0,0,1,zeroblob(15)",
                                       "2,'x',2.5,x'00','y','z',zeroblob(16)", "1,0,0,0,0,1,7")),
    "foreign_large_row": foreign_index(rows("1,0,0,0,0,1,zeroblob(20000)")),
    "foreign_same_block": foreign_index(rows(*(f"{r},1,2,3,0,{r},zeroblob(16)" for r in range(4)))),
    "foreign_order": foreign_index(rows("1,0,0,0,0,9223372036854775807,zeroblob(16)")),
    "foreign_identity": foreign_index(TABLES, "schema 1, another"),
    "foreign_view": foreign_index(TABLES.split(";")[0] + ";" + VIEW),
    "foreign_trigger": foreign_index(TABLES + "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM records; END;"),
    "foreign_columns": foreign_index(TABLES.replace("tokens BLOB NOT NULL", "tokens BLOB AS (zeroblob(100000000))")),
}
INPUTS |= {f"header_{name}": CLOSED + b"".join(change(PAGES, r * STRIDE + at, b"\xa5") for r in range(4)) for name, at in HEADER.items()}

if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, data in INPUTS.items():
        (FOLDER / name).write_bytes(data)
