#!/usr/bin/env python3
"""Adds up what tools/test ran: test_totals.py REPORTS [BROKEN_PHASE...]

REPORTS holds, for every run, NAME.xml (ctest's JUnit report) and a folder NAME with GoogleTest's own report of each
program. A program with a report of its own counts by its cases, a Python unittest by what it says it ran, anything else
as one test. A program that crashed wrote no report and is one failure; so is a phase that broke. Prints the failed and
the skipped by name, then `N passed, N failed, N skipped`; status 1 on any failure, and with CI=true on any skip.
"""

import os
import pathlib
import re
import sys
import xml.etree.ElementTree as xml

UNITTEST = re.compile(r"^Ran (\d+) tests? in [^\n]*\n\n(?:OK|FAILED)(?: \(([^)]*)\))?", re.M)


class Totals:
    def __init__(self):
        self.passed = 0
        self.failed = []
        self.skipped = []

    def add_cases(self, run, report):
        for case in xml.parse(report).getroot().iter("testcase"):
            name = f"{run}: {case.get('classname')}.{case.get('name')}"
            if case.find("failure") is not None:
                self.failed.append(name)
            elif case.get("result") == "skipped":
                skip = case.find("skipped")
                lines = [] if skip is None else skip.get("message", "").strip().splitlines()
                self.skipped.append(name + ": " + (lines[-1] if lines else "no reason given"))
            elif case.get("result") != "suppressed":
                self.passed += 1

    def add_unittest(self, name, output, summary):
        counts = dict(re.findall(r"(\w+)=(\d+)", summary.group(2) or ""))
        failed = int(counts.get("failures", 0)) + int(counts.get("errors", 0))
        failing = re.findall(r"^(?:FAIL|ERROR): (.*)$", output, re.M)
        self.failed += [f"{name}: {failing[i] if i < len(failing) else 'see its output'}" for i in range(failed)]
        reasons = re.findall(r"skipped ['\"](.*)['\"]$", output, re.M)
        skipped = int(counts.get("skipped", 0))
        self.skipped += [f"{name}: {reasons[i] if i < len(reasons) else 'no reason given'}" for i in range(skipped)]
        # A class whose set-up is skipped or fails runs none of its tests.
        self.passed += max(0, int(summary.group(1)) - failed - skipped)

    def add_run(self, report):
        run = report.stem
        for test in xml.parse(report).getroot().iter("testcase"):
            name = f"{run}: {test.get('name')}"
            output = test.findtext("system-out") or ""
            own = report.with_suffix("") / f"{test.get('name')}.xml"
            summary = UNITTEST.search(output)
            status = test.get("status")
            if status == "disabled":
                continue
            before = len(self.failed)
            if status == "notrun":
                self.skipped.append(f"{name}: {output.strip().splitlines()[-1] if output.strip() else 'not run'}")
            elif own.exists():
                self.add_cases(run, own)
            elif summary:
                self.add_unittest(name, output, summary)
            elif status == "run":
                self.passed += 1
            # Dead before its report, or dead after it (a sanitizer's word at exit): a failure either way.
            if status == "fail" and len(self.failed) == before:
                self.failed.append(name)


def main(folder, broken):
    totals = Totals()
    for report in sorted(pathlib.Path(folder).glob("*.xml")):
        totals.add_run(report)
    totals.failed += [f"phase: {name}" for name in broken]
    for line in totals.skipped:
        print("skipped " + line)
    for line in totals.failed:
        print("FAILED " + line)
    strict = os.environ.get("CI") == "true" and totals.skipped
    if strict:
        print("CI=true: a skipped test fails the run")
    print(f"{totals.passed} passed, {len(totals.failed)} failed, {len(totals.skipped)} skipped")
    return 1 if totals.failed or strict or not totals.passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
