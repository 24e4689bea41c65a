"""What a load script found beside what must hold: printed as a table, and the exit status."""

import sys


def judge(rows):
    """`rows`: (what, the figure, the bound in words, whether it holds). Returns the exit status: 1 when a bound is missed."""
    width = max(len(what) for what, _, _, _ in rows)
    for what, figure, bound, holds in rows:
        print(f"{'ok    ' if holds else 'MISSED'} {what:{width}}  {figure}  ({bound})", file=sys.stderr)
    return 0 if all(holds for _, _, _, holds in rows) else 1
