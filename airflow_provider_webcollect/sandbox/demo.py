"""The initial contents of every sandbox: one account, its credentials, a team, tasks, groups and data apps.

The credentials are valid only in a sandbox.
"""

from __future__ import annotations

USERNAME = "demo"
PASSWORD = "sandbox-password"
ACCESS_TOKEN = "sandbox-access-token"
REFRESH_TOKEN = "sandbox-refresh-token"
API_KEY = "op_sk_sandbox0000000000000000"
DATAHUB_API_KEY = "dh_sk_sandbox-author"
#: Valid, but its owner is the author of ``OTHERS_APP_ID`` only.
OTHER_DATAHUB_API_KEY = "dh_sk_sandbox-somebody-else"

#: In the team of ``USERNAME``: her tasks are invisible, but analytics queries may name her.
COLLEAGUE = "alice"
#: Not in the team: analytics queries may not name this user.
STRANGER = "mallory"

#: Has never run; five loop items; four sub-tasks.
TASK_ID = "5a9d0b0e-0000-4000-8000-000000000001"
#: Has run twice: batches ``000001`` and ``000002``, 120 rows each.
FINISHED_TASK_ID = "5a9d0b0e-0000-4000-8000-000000000002"
#: In group 2; has never run.
GROUPED_TASK_ID = "5a9d0b0e-0000-4000-8000-000000000003"
COLLEAGUES_TASK_ID = "5a9d0b0e-0000-4000-8000-00000000000a"
STRANGERS_TASK_ID = "5a9d0b0e-0000-4000-8000-00000000000b"

LOOP_ITEMS = ("laptop", "coffee", "headphones", "自行车", "rucksack")

DEFAULT_GROUP_ID = 1
GROUPS = {1: "My tasks", 2: "Shops", 3: "News"}

#: Has a slash: it must be percent-encoded in the path.
APP_ID = "demo/price-watch"
UNRELEASED_APP_ID = "demo-unreleased"
OTHERS_APP_ID = "other-app"
