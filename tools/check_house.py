#!/usr/bin/env python3
"""Checks the rules of the house that no compiler checks; docs/architecture.md explains them.

    tools/check_house.py                       all rules over the files that git tracks
    tools/check_house.py --binary build/release/spillway    also: every option of --help stands in docs/options.md, and back

Prints one line a finding, `file:line: rule: what`, and ends with status 1 if there is any. The tables below are the only
place where a rule is written down for machines.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent

# Who may include whom. `base` and `core` are open to all; a folder may include itself; what is not here is forbidden.
OPEN = {"base", "core"}
ALL = None
MAY_INCLUDE = {
    "base": set(),
    "core": set(),
    "api": {"http", "text", "grammar", "engine", "telemetry"},
    "engine": {"sched", "kv", "exec"},
    "sched": {"kv"},
    "exec": {"store", "model", "ops", "device"},
    "store": {"device"},
    "model": {"load", "ops", "device"},
    "ops": {"device"},
    "http": set(),
    "grammar": set(),
    "text": set(),
    "load": set(),
    "kv": set(),
    "device": set(),
    "hub": set(),
    "telemetry": set(),
    "events": set(),
    "apps": ALL,
}
# base and core are open, but they are the ground floor themselves.
GROUND = {"base": set(), "core": {"base"}}

FILE_LINES_HARD, FILE_LINES_SOFT = 800, 400
FUNCTION_LINES_HARD, FUNCTION_LINES_SOFT = 70, 40
EXCEPTIONS = TOP / "tools" / "house_exceptions.txt"

DRAWERS = re.compile(r"(^|[/_])(utils?|helpers?|misc|common|manager|context)\.(h|cc|cu|cuh|py|sh)$", re.I)
PURE = {"sched", "kv", "core"}
IMPURE = re.compile(
    r"std::(mutex|shared_mutex|atomic|jthread|thread|condition_variable|random_device|[io]?fstream)\b"
    r"|std::chrono|\b(steady|system|high_resolution)_clock\b|\b(getenv|fopen|clock_gettime|cuda[A-Z]\w*)\b"
    r"|#include <(mutex|shared_mutex|atomic|thread|chrono|fstream|filesystem|random|condition_variable)>")
ENVIRONMENT = re.compile(r"\b(secure_)?getenv\s*\(")
DEBT = re.compile(r"\b(FIX" r"ME|X" r"XX|HA" r"CK)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.$}~])/(work|tmp|home|root|Users|mnt|opt|var/tmp)/[\w.]+|\.\./(shared)\b")
PAGES = re.compile(r"(?<![\w/])docs/[\w/-]+\.md\b")
CPP = (".h", ".cc", ".cu", ".cuh")
TEXT = CPP + (".py", ".sh", ".cmake", ".md", ".txt", ".json", ".yml", "")
NOT_OURS = ("tests/data/", "tests/golden/data/", "models/", "tools/data/", "bench/results/", "third_party/")


class Findings:
    def __init__(self):
        self.lines = []
        self.notes = []

    def add(self, path, line, rule, what):
        self.lines.append(f"{path}:{line}: {rule}: {what}")

    def note(self, path, line, rule, what):
        self.notes.append(f"{path}:{line}: {rule}: {what}")


def tracked_files(top):
    names = subprocess.run(["git", "-C", str(top), "ls-files", "--cached", "--others", "--exclude-standard"],
                           check=True, capture_output=True, text=True).stdout.split("\n")
    return sorted(name for name in names if name and (top / name).is_file())


def is_test(path):
    stem = pathlib.PurePath(path).stem
    return stem.endswith(("_test", "_bench", "_fuzz")) or "_test_" in stem or path.startswith("tests/")


def blank_out(text):
    """The C++ text with comments, strings and character literals replaced by spaces, line ends kept."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(?P<delim>[^()\\\s]{0,16})\(.*?\)(?P=delim)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'',
        re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def functions_of(text):
    """(name, first line, last line) of every function body in C++ text, by its braces.

    A brace opens a function when what stands before it, back to the last `;`, `{` or `}`, has a parameter list and no
    keyword that opens something else. Bodies inside functions (lambdas, loops) belong to the function around them.
    """
    code = blank_out(text)
    code = re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", lambda m: re.sub(r"[^\n]", " ", m.group()), code, flags=re.M)
    code = re.sub(r"(\w)\{([^{}]*)\}(?=\s*[,{])", r"\1(\2)", code)  # members initialised with braces before a body
    found, inside, depth, start, name = [], None, 0, 0, ""
    for match in re.finditer(r"[{};]", code):
        char = match.group()
        if char == "{":
            depth += 1
            if inside is None:
                head = code[start:match.start()]
                name = function_name(head)
                if name:
                    inside = depth
                    first = match.start() - len(head) + (len(head) - len(head.lstrip()))
        elif char == "}":
            if inside == depth:
                found.append((name, code.count("\n", 0, first) + 1, code.count("\n", 0, match.start()) + 1))
                inside = None
            depth -= 1
        start = match.end()
    return found


def function_name(head):
    head = head.strip()
    if not head.endswith((")", "const", "override", "noexcept", "final", "&", "&&")) and not re.search(r"\)[^()]*->[^()]*$", head) \
            and not re.search(r"\)\s*:\s*\w", head):
        return None
    if re.match(r"(namespace|class|struct|union|enum|extern)\b", head) or re.search(r"=\s*$", head):
        return None
    match = re.search(r"((?:~?\w+(?:<[^<>()]*>)?::)*(?:operator\s*(?:\(\)|\[\]|[^\s\w(]+|\w+)|~?\w+))\s*\(", head)
    if not match or match.group(1) in {"if", "for", "while", "switch", "catch", "requires", "alignas", "decltype", "sizeof"}:
        return None
    test = re.match(r"(?:TEST|TEST_F|TEST_P|TYPED_TEST)\s*\(\s*(\w+)\s*,\s*(\w+)\s*\)", head)
    return f"{test.group(1)}.{test.group(2)}" if test else match.group(1)


def exceptions(findings):
    """{(rule, what)} allowed by name. Each line: `rule  name  # reason`."""
    allowed = {}
    if not EXCEPTIONS.exists():
        return allowed
    for number, line in enumerate(EXCEPTIONS.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        entry, _, reason = line.partition("#")
        words = entry.split()
        if len(words) != 2 or len(reason.strip()) < 10:
            findings.add(EXCEPTIONS.relative_to(TOP), number, "exceptions", "expected `rule name  # reason`")
            continue
        allowed[tuple(words)] = number
    return allowed


def check_includes(path, text, edges, findings):
    parts = path.split("/")
    folder = "apps" if parts[0] == "apps" else parts[1] if parts[0] == "src" and len(parts) > 2 else None
    if folder is None:
        return
    if folder not in MAY_INCLUDE:
        findings.add(path, 1, "include-table", f"folder '{folder}' has no line in the table of tools/check_house.py")
        return
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+"([^"/]+)/', line)
        if not match or match.group(1) == folder:
            continue
        other = match.group(1)
        if other not in MAY_INCLUDE:
            continue
        if not is_test(path):
            edges[folder].add(other)
        allowed = GROUND.get(folder) if folder in GROUND else ALL if MAY_INCLUDE[folder] is ALL else MAY_INCLUDE[folder] | OPEN
        if allowed is not ALL and other not in allowed:
            findings.add(path, number, "include-table", f"{folder}/ may not include {other}/")


def check_cycles(edges, findings):
    state = {}

    def visit(folder, trail):
        if state.get(folder) == "done":
            return
        if folder in trail:
            findings.add("src", 1, "include-cycle", " -> ".join(trail[trail.index(folder):] + [folder]))
            return
        for other in sorted(edges[folder]):
            visit(other, trail + [folder])
        state[folder] = "done"

    for folder in sorted(edges):
        visit(folder, [])


def check_lengths(path, text, allowed, used, findings):
    lines = text.count("\n")
    if lines > FILE_LINES_HARD:
        if ("file-length", path) in allowed:
            used.add(("file-length", path))
        else:
            findings.add(path, lines, "file-length", f"{lines} lines, at most {FILE_LINES_HARD}")
    elif lines > FILE_LINES_SOFT and not is_test(path):
        findings.note(path, lines, "file-length", f"{lines} lines, aim at {FILE_LINES_SOFT}")
    if not path.endswith(CPP):
        return
    for name, first, last in functions_of(text):
        length = last - first + 1
        key = ("function-length", f"{path}:{name}")
        if length > FUNCTION_LINES_HARD:
            if key in allowed:
                used.add(key)
            else:
                findings.add(path, first, "function-length", f"{name} has {length} lines, at most {FUNCTION_LINES_HARD}")
        elif length > FUNCTION_LINES_SOFT and not is_test(path):
            findings.note(path, first, "function-length", f"{name} has {length} lines, aim at {FUNCTION_LINES_SOFT}")


def check_text(path, text, findings):
    for number, line in enumerate(text.splitlines(), 1):
        if DEBT.search(line):
            findings.add(path, number, "debt", f"{DEBT.search(line).group()}: fix it or open an issue")
        for page in PAGES.findall(line):
            if not (TOP / page).exists() and not is_test(path):
                findings.add(path, number, "page", f"{page} does not exist")
        match = MACHINE_PATHS.search(line)
        if match and not (is_test(path) and match.group(1) != "work"):
            findings.add(path, number, "machine-path", f"'{match.group()}' exists on one machine only")


def check_purity(path, text, findings):
    parts = path.split("/")
    if parts[0] != "src" or is_test(path) or not path.endswith(CPP):
        return
    code = blank_out(text)
    for number, line in enumerate(code.splitlines(), 1):
        if parts[1] in PURE and IMPURE.search(line):
            findings.add(path, number, "purity", f"{parts[1]}/ sees no thread, clock, file or device: {IMPURE.search(line).group()}")
        elif ENVIRONMENT.search(line):
            findings.add(path, number, "environment", "only apps/ reads the environment")


def check_tour(findings):
    """Every `path` and `path:Name` in backquotes in docs/architecture.md's tour exists, and the name stands in that file."""
    page = TOP / "docs" / "architecture.md"
    if not page.exists():
        return
    text = page.read_text()
    tour = text.partition("## Follow one request")[2].partition("\n## ")[0]
    if not tour:
        findings.add("docs/architecture.md", 1, "tour", "the section 'Follow one request' is missing")
        return
    first = text[:text.index(tour)].count("\n") + 1
    stops = 0
    for offset, line in enumerate(tour.splitlines()):
        stops += bool(re.match(r"\d+\. ", line))
        for path, name in re.findall(r"`((?:src|apps)/[\w/.]+\.\w+)(?::([\w:~]+))?`", line):
            if not (TOP / path).exists():
                findings.add("docs/architecture.md", first + offset, "tour", f"{path} does not exist")
            elif name and not re.search(rf"\b{re.escape(name.split('::')[-1])}\b", (TOP / path).read_text()):
                findings.add("docs/architecture.md", first + offset, "tour", f"{path} has no {name}")
    if stops != 10:
        findings.add("docs/architecture.md", first, "tour", f"{stops} stops, expected 10")


def check_threats(findings):
    """Every row of the threat table in docs/security.md names at least one test, `path:Suite.Name` or `path:name`, that exists."""
    page = TOP / "docs" / "security.md"
    if not page.exists():
        return
    rows = 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or len(cells) != 3 or cells[0] == "threat":
            continue
        rows += 1
        tests = re.findall(r"`([\w/.]+):([\w.]+)`", cells[2])
        if not tests:
            findings.add("docs/security.md", number, "threats", f"'{cells[0]}' names no test")
        for path, name in tests:
            suite, _, case = name.rpartition(".")
            pattern = rf"TEST(_[FP])?\(\s*{suite},\s*{case}\)" if suite else rf"\bdef {case}\("
            if not (TOP / path).exists() or not re.search(pattern, (TOP / path).read_text()):
                findings.add("docs/security.md", number, "threats", f"{path} has no test {name}")
    if rows == 0:
        findings.add("docs/security.md", 1, "threats", "the table of threats is missing")


def help_options(binary, subcommand):
    text = subprocess.run([binary] + subcommand + ["--help"], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)) - {"--help"}


def check_options(binary, findings):
    """docs/options.md and --help name the same options. In the page they stand in the first column of the tables below a
    heading "## `spillway SUBCOMMAND ...`", up to the next heading; the options that subcommands share with serve stand there alone."""
    page = TOP / "docs" / "options.md"
    if not page.exists():
        findings.add("docs/options.md", 1, "options", "the page is missing")
        return
    documented = collections.defaultdict(set)
    subcommand = None
    for line in page.read_text().splitlines():
        heading = re.match(r"## `spillway ([a-z][a-z ]*[a-z])", line)
        if heading:
            subcommand = heading.group(1)
        elif line.startswith(("## ", "### ")):
            subcommand = None
        elif line.startswith("| `") and subcommand:
            documented[subcommand] |= set(re.findall(r"--[a-z][a-z0-9-]*", line.split("|")[1]))
    for name, options in sorted(documented.items()):
        shown = help_options(binary, name.split())
        if name != "serve":
            shown -= documented["serve"] - options
        for option in sorted(shown - options):
            findings.add("docs/options.md", 1, "options", f"spillway {name} --help has {option}, the page has not")
        for option in sorted(options - shown):
            findings.add("docs/options.md", 1, "options", f"the page has {option}, spillway {name} --help has not")
    if not documented:
        findings.add("docs/options.md", 1, "options", "no table of options found")


def check_all(binary=None):
    findings = Findings()
    allowed, used = exceptions(findings), set()
    edges = collections.defaultdict(set)
    for path in tracked_files(TOP):
        if DRAWERS.search(path):
            findings.add(path, 1, "drawer", "a name that says what is inside, please")
        if path.startswith(NOT_OURS) or pathlib.PurePath(path).suffix not in TEXT or path == "LICENSE":
            continue
        text = (TOP / path).read_text(errors="replace")
        check_text(path, text, findings)
        if path.endswith(CPP) or path.endswith(".py"):
            check_lengths(path, text, allowed, used, findings)
        if path.endswith(CPP):
            check_includes(path, text, edges, findings)
            check_purity(path, text, findings)
    check_cycles(edges, findings)
    for key, number in allowed.items():
        if key not in used:
            findings.add(EXCEPTIONS.relative_to(TOP), number, "exceptions", f"{key[1]} needs no exception any more; remove the line")
    check_tour(findings)
    check_threats(findings)
    if binary:
        check_options(binary, findings)
    return findings


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", help="a built spillway, to compare its options with docs/options.md")
    parser.add_argument("--notes", action="store_true", help="also print what is over the soft limits")
    arguments = parser.parse_args()
    findings = check_all(arguments.binary)
    for line in findings.lines:
        print(line)
    if arguments.notes:
        for line in findings.notes:
            print("note: " + line)
    print(f"house: {len(findings.lines)} findings, {len(findings.notes)} over a soft limit (--notes lists them)")
    return 1 if findings.lines else 0


if __name__ == "__main__":
    sys.exit(main())
