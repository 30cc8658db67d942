"""`headwater up` that has little patience with what does not end, and short pauses."""

import sys

from headwater.cli import main
from headwater.supervisor import child, plan, supervisor

for kind in plan.GRACE_S:
    plan.GRACE_S[kind] = 1.0
supervisor._GUARD_GRACE_S = 1.0
child._LEFTOVERS_S = 1.0
sys.exit(main.run(["up", *sys.argv[1:]]))
