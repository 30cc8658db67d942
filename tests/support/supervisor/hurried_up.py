"""`headwater up` that has little patience with pipelines that do not end."""

import sys

from headwater.cli import main
from headwater.supervisor import child, plan, supervisor

plan.GRACE_S[plan.PIPELINES] = 1.0
supervisor._GUARD_GRACE_S = 1.0
child._LEFTOVERS_S = 1.0
sys.exit(main.run(["up", *sys.argv[1:]]))
