#!/usr/bin/env python3
"""Reports as ctest 3.25 and GoogleTest 1.12 write them add up to the right totals, crashes and skips included."""

import contextlib
import io
import os
import pathlib
import tempfile
import unittest

import test_totals

CTEST = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="x" tests="5">
<testcase name="a_test" classname="a_test" time="1" status="run"><system-out>[ PASSED ]</system-out></testcase>
<testcase name="crash_test" classname="crash_test" time="1" status="fail"><failure message=""/><system-out/></testcase>
<testcase name="leak_test" classname="leak_test" time="1" status="fail"><failure message=""/><system-out/></testcase>
<testcase name="replay" classname="replay" time="1" status="run"><system-out>ok</system-out></testcase>
<testcase name="e2e" classname="e2e" time="1" status="fail"><failure message=""/><system-out>test_x (C) ... skipped 'no model tiny'
FAIL: test_y (C)

----
Ran 5 tests in 0.1s

FAILED (failures=1, skipped=1)
</system-out></testcase>
<testcase name="gone" classname="gone" time="0" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>
<system-out>needs clang-19</system-out></testcase>
</testsuite>"""
A_TEST = """<testsuites><testsuite name="A">
<testcase name="Good" status="run" result="completed" time="0" classname="A" />
<testcase name="Skip" status="run" result="skipped" time="0" classname="A"><skipped message="a.cc:1&#x0A;needs model x&#x0A;"/></testcase>
<testcase name="Off" status="notrun" result="suppressed" time="0" classname="A" />
</testsuite></testsuites>"""
LEAK_TEST = """<testsuites><testsuite name="L"><testcase name="Good" status="run" result="completed" classname="L" /></testsuite></testsuites>"""


class Totals(unittest.TestCase):
    def run_main(self, broken=(), ci="", ctest=CTEST):
        with tempfile.TemporaryDirectory() as folder:
            top = pathlib.Path(folder)
            (top / "release").mkdir()
            (top / "release.xml").write_text(ctest)
            (top / "release" / "a_test.xml").write_text(A_TEST)
            (top / "release" / "leak_test.xml").write_text(LEAK_TEST)
            os.environ["CI"] = ci
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                status = test_totals.main(folder, list(broken))
            return status, out.getvalue().splitlines()

    def test_counts_cases_crashes_and_skips(self):
        status, lines = self.run_main()
        # Passed: A.Good, L.Good, replay, three of e2e. Failed: crash_test, leak_test (after its report), e2e's test_y.
        self.assertEqual(lines[-1], "6 passed, 3 failed, 3 skipped")
        self.assertEqual(status, 1)
        text = "\n".join(lines)
        for reason in ("A.Skip: needs model x", "no model tiny", "gone: needs clang-19"):
            self.assertIn(reason, text)

    def test_a_broken_phase_is_a_failure(self):
        self.assertEqual(self.run_main(["build asan"])[1][-1], "6 passed, 4 failed, 3 skipped")

    def test_a_skip_fails_ci_alone(self):
        only_skips = CTEST[:CTEST.index('<testcase name="crash')] + "</testsuite>"
        self.assertEqual(self.run_main(ctest=only_skips)[0], 0)
        self.assertEqual(self.run_main(ctest=only_skips, ci="true")[0], 1)

    def test_nothing_run_is_no_success(self):
        self.assertEqual(self.run_main(ctest="<testsuite/>")[0], 1)


if __name__ == "__main__":
    unittest.main()
